# ruff: noqa: RUF001 (letters of other scripts are meant)
"""Texts in languages that the default encoder does not know are found by words and their pieces."""

import pytest

from titans.recall import TextMemory

SETS = {
    "German": [
        ("Ich wohne seit drei Jahren in Hamburg.", "Wo wohne ich?"),
        ("Mein Hund heißt Waldi.", "Wie heißt mein Hund?"),
        ("Meine Schwester arbeitet als Ärztin.", "Als was arbeitet meine Schwester?"),
        ("Das Passwort des Routers lautet Sonnenblume.", "Wie lautet das Passwort des Routers?"),
        ("Am liebsten esse ich Pflaumenkuchen.", "Welchen Kuchen esse ich am liebsten?"),
        ("Der Schlüssel liegt unter der Fußmatte.", "Wo liegt der Schlüssel?"),
        ("Mein Zug fährt um sieben Uhr ab.", "Wann fährt mein Zug?"),
        ("Ich habe eine Allergie gegen Nüsse.", "Welche Allergie habe ich?"),
        ("Mein Bruder spielt Geige im Orchester.", "Was spielt mein Bruder?"),
        ("Das Auto ist in der Werkstatt.", "Wo ist das Auto?"),
    ],
    "Chinese": [
        ("我住在北京的朝阳区。", "我住在哪里？"),
        ("我的狗叫小白。", "我的狗叫什么？"),
        ("我姐姐是医生。", "我姐姐做什么工作？"),
        ("我最喜欢的颜色是绿色。", "我喜欢什么颜色？"),
        ("保险箱的密码是七七一九。", "保险箱的密码是多少？"),
        ("我对花生过敏。", "我对什么过敏？"),
        ("火车早上八点出发。", "火车几点出发？"),
        ("我的生日是五月三日。", "我的生日是哪天？"),
        ("我每天骑自行车上班。", "我怎么上班？"),
        ("钥匙放在花盆下面。", "钥匙放在哪儿？"),
    ],
    "Arabic": [
        ("أسكن في القاهرة منذ سنتين.", "أين أسكن؟"),
        ("كلبي اسمه ركس.", "ما اسم كلبي؟"),
        ("أختي تعمل طبيبة.", "ماذا تعمل أختي؟"),
        ("لوني المفضل هو الأخضر.", "ما هو لوني المفضل؟"),
        ("رمز الخزنة هو سبعة سبعة واحد.", "ما هو رمز الخزنة؟"),
        ("عندي حساسية من الفول السوداني.", "من ماذا عندي حساسية؟"),
        ("القطار يغادر في الساعة الثامنة.", "متى يغادر القطار؟"),
        ("المفتاح تحت السجادة.", "أين المفتاح؟"),
        ("أخي يعزف على العود.", "على ماذا يعزف أخي؟"),
        ("سيارتي في الورشة.", "أين سيارتي؟"),
    ],
    "Russian": [
        ("Я живу в Казани уже три года.", "Где я живу?"),
        ("Мою собаку зовут Шарик.", "Как зовут мою собаку?"),
        ("Моя сестра работает врачом.", "Кем работает моя сестра?"),
        ("Мой любимый цвет зелёный.", "Какой мой любимый цвет?"),
        ("Код от сейфа семь семь один.", "Какой код от сейфа?"),
        ("У меня аллергия на орехи.", "На что у меня аллергия?"),
        ("Поезд отправляется в восемь утра.", "Когда отправляется поезд?"),
        ("Ключи лежат под ковриком.", "Где лежат ключи?"),
        ("Мой брат играет на скрипке.", "На чём играет мой брат?"),
        ("Машина стоит в мастерской.", "Где стоит машина?"),
    ],
}


@pytest.mark.parametrize("language", SETS)
def test_plain_questions_find_their_record_and_nothing_is_a_false_duplicate(
    real_memory: TextMemory, language: str
):
    for number, (text, _) in enumerate(SETS[language]):
        record = real_memory.remember(text, speaker="A", id=str(number))
        assert record.duplicate_of is None and record.successor_of is None, text
    again = real_memory.remember(SETS[language][0][0], speaker="A", id="again")
    assert again.duplicate_of == "0"
    found = [real_memory.recall(asked, 1)[0] for _, asked in SETS[language]]
    right = [str(i) in (r.id, *r.duplicates) for i, r in enumerate(found)]
    assert sum(right) >= 8, [SETS[language][i] for i, ok in enumerate(right) if not ok]


def test_another_language_does_not_answer_for_sure(real_memory: TextMemory):
    real_memory.remember("我住在北京的朝阳区。", speaker="A")
    real_memory.remember("The code of the safe in the cellar is 7719.", speaker="A", id="safe")
    found = real_memory.recall("What is the code of the safe?", 2)
    assert found[0].id == "safe" and found[1].score < found[0].score / 2


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("I live in Oslo.", True),
        ("def area(r): return 3.14 * r ** 2", True),
        ("555 0134", True),
        ("I flew to Los Angeles and La Paz.", True),
        ("Ich wohne in Berlin.", False),
        ("¿Dónde vivo?", False),
        ("Le chat dort sur le canapé.", False),
        ("Я живу в Москве.", False),
        ("我爱北京", False),
    ],
)
def test_what_the_encoder_knows(minilm, text, is_known):
    assert minilm.covers(text) is is_known
