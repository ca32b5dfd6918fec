"""Duplicates and updates, with the real encoder."""

import pytest

from titans.recall import TextMemory
from titans.tasks.recall_sets import updates

FACTS = [
    [
        "My sister lives in Lisbon.",
        "Lisbon is where my sister lives.",
        "My sister's home is in Lisbon.",
    ],
    [
        "I am allergic to peanuts.",
        "I have a peanut allergy.",
        "Peanuts give me an allergic reaction.",
    ],
    [
        "Our meeting is on Tuesday at 3 pm.",
        "We meet on Tuesday at 3 pm.",
        "The meeting takes place Tuesday, 3 pm.",
    ],
    [
        "My favourite colour is green.",
        "Green is my favourite colour.",
        "The colour I like most is green.",
    ],
    [
        "The cat is called Whiskers.",
        "The cat's name is Whiskers.",
        "Our cat goes by the name Whiskers.",
    ],
]

UPDATES = [
    ("I live in Rome.", "I moved to Oslo, I no longer live in Rome."),
    ("I work at a bank.", "I quit the bank, I now work at a school."),
    ("My phone number is 555 1234.", "My phone number is 555 9876."),
    ("My favourite band is Blur.", "My favourite band is now Pulp."),
    ("The meeting is on Tuesday.", "The meeting is on Thursday."),
    ("My dog weighs 10 kilos.", "My dog weighs 12 kilos now."),
    ("I drive a Fiat.", "I sold the Fiat and drive a Volvo now."),
    ("My sister lives in Lisbon.", "My sister lives in Madrid."),
    ("The office is in Rome.", "The office is in Oslo."),
    ("I am a vegetarian.", "I am no longer a vegetarian."),
    ("My password hint is blue.", "My password hint is yellow."),
    ("My boss is called Karen.", "My boss is called Peter."),
    ("The rent is 800 euros.", "The rent is 900 euros."),
    ("I study physics.", "I switched from physics, I study law instead."),
    ("My train leaves at nine.", "My train leaves at ten."),
    ("The project is called Falcon.", "The project was renamed, it is called Eagle."),
    ("I am single.", "I am not single anymore."),
    ("The party is on Saturday.", "The party was postponed to Sunday."),
    ("My address is 5 Oak Street.", "My address changed, it is 7 Elm Street."),
    ("My daughter is six years old.", "My daughter is seven years old."),
    ("My doctor is Dr Adams.", "I have a new doctor, Dr Evans."),
    ("Our landlord is Mr Hill.", "The house was sold, our landlord is Ms Lang now."),
    ("I go to bed at nine.", "I changed my routine and go to bed at half past ten now."),
    ("I take the tram to work.", "I take the train to work."),
    ("My shoe size is 38.", "I wear shoe size 39 now."),
    ("I pay 52 euros for electricity.", "I pay 63 euros for electricity."),
    ("I set my alarm limit to two hours.", "I set my alarm limit to five hours."),
    ("I meditate for ten minutes a day.", "I meditate for twenty minutes a day."),
]

LOOK_ALIKES = [
    ("My sister lives in Lisbon.", "My brother lives in Madrid."),
    ("I like apples.", "I like oranges."),
    ("I visited Rome last year.", "I visited Oslo last year."),
    ("My dog is called Rex.", "My cat is called Whiskers."),
    ("I bought a book about whales.", "I bought a book about trains."),
    ("Ann went hiking on Monday.", "Ann went swimming on Monday."),
    ("I ate pizza for lunch.", "I ate soup for lunch."),
    ("My mother is a doctor.", "My father is a teacher."),
    ("I watched a film about space.", "I watched a film about bees."),
    ("We played chess yesterday.", "We played cards yesterday."),
    ("I have a bicycle.", "I have a car."),
    ("My sister is Tina.", "My sister is Vera."),
    ("I ran five miles.", "I ran six miles."),
    ("I take the dog to the park.", "I take the train to work."),
    ("I have two meetings today.", "I have three meetings today."),
    ("The red car is fast.", "The blue car is slow."),
    ("I met Paul at the station.", "I met Clara at the station."),
    ("My uncle works at a bank.", "My aunt works at a school."),
    ("I can speak French.", "I can speak Spanish."),
    ("I ran five kilometres on Sunday.", "I ran eight kilometres on Monday."),
    ("The kitchen is painted white.", "The bathroom is painted green."),
    ("Did you see the new museum?", "Did you see the new library?"),
    ("I love going to the beach.", "I love going to the mountains."),
    ("My son plays the violin.", "My daughter plays the piano."),
]


def test_five_facts_in_three_wordings_are_five_groups(real_memory: TextMemory):
    for wording in range(3):
        for fact in FACTS:
            real_memory.remember(fact[wording], speaker="Ann")
    records = real_memory.records()
    groups = {record.duplicate_of or record.id for record in records}
    by_fact = [{r.duplicate_of or r.id for r in records if r.text in fact} for fact in FACTS]
    assert all(len(groups_of_fact) == 1 for groups_of_fact in by_fact), by_fact
    assert len(groups) == 5
    found = real_memory.recall("Where does Ann's sister live?", 5)
    assert len(found) == 5 and "Lisbon" in found[0].text and len(found[0].duplicates) == 2


def test_successor_links_are_precise(real_memory: TextMemory):
    found = {}
    for kind, pairs in (("update", UPDATES), ("look-alike", LOOK_ALIKES)):
        found[kind] = 0
        for number, (old, new) in enumerate(pairs):
            scope = TextMemory(
                real_memory.store.path, f"{kind} {number}", encoder=real_memory.encoder
            )
            first = scope.remember(old, speaker="Ann")
            found[kind] += scope.remember(new, speaker="Ann").successor_of == first.id
            scope.close()
    precision = found["update"] / (found["update"] + found["look-alike"])
    assert precision >= 0.9, found
    assert found["update"] >= 22, found


def test_a_successor_leads_and_both_stay_readable(real_memory: TextMemory):
    old = real_memory.remember("I live in Rome.", speaker="Ann", time="2024-01-01")
    new = real_memory.remember(
        "I moved to Oslo, I no longer live in Rome.", speaker="Ann", time="2024-06-01"
    )
    assert new.successor_of == old.id
    found = real_memory.recall("Where does Ann live?", 2)
    assert [r.id for r in found] == [new.id, old.id]
    assert found[1].succeeded_by == new.id and found[0].successor_of == old.id
    assert found[1].time < found[0].time


@pytest.mark.parametrize("text", ["Thanks!", "That's great!", "Wow."])
def test_small_talk_repeated_is_one_group(real_memory: TextMemory, text):
    first = real_memory.remember(text, speaker="Ann")
    assert real_memory.remember(text, speaker="Ann").duplicate_of == first.id


HOMES = [
    ("I live in Paris.", "2020-03-01", "paris"),
    ("We moved to Rome last month.", "2021-03-01", "rome"),
    ("My flat is in Oslo now.", "2022-03-01", "oslo"),
]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_chains_resolve_in_time_in_whatever_order_they_were_written(
    real_memory: TextMemory, order: tuple[int, ...]
):
    for text, time, id in (HOMES[place] for place in order):
        real_memory.remember(text, speaker="Ann", time=time, id=id)
    real_memory.remember("I slept badly again.", speaker="Ann", time="2022-04-01")
    found = real_memory.recall("Where does Ann live?", 3)
    assert found[0].id == "oslo" and found[0].successor_of == "rome"
    assert [r.id for r in real_memory.history("rome")] == ["paris", "rome", "oslo"]
    for at, known in (("2020-06", "paris"), ("2021", "rome"), ("2022-02-28", "rome")):
        then = real_memory.recall("Where does Ann live?", 1, at=at)[0]
        assert (then.id, then.succeeded_by) == (known, None)
    assert real_memory.recall("Where does Ann live?", 1, at="2019") == []


def test_links_need_no_word_in_common(real_memory: TextMemory):
    old = real_memory.remember("I am a vegetarian.", speaker="Ann", time="2023-01-01")
    real_memory.remember("I am a vegetarian.", speaker="Bob", time="2023-02-01")
    new = real_memory.remember("I'm eating meat again.", speaker="Ann", time="2024-01-01")
    assert new.successor_of == old.id


def test_saying_a_thing_twice_keeps_its_update(real_memory: TextMemory):
    for number, day in enumerate(("2023-01-01", "2023-01-05")):
        real_memory.remember("I live in Rome.", speaker="Ann", time=day, id=f"rome {number}")
    new = real_memory.remember(
        "I moved to Oslo, I live there now.", speaker="Ann", time="2023-06-01"
    )
    found = real_memory.recall("Where does Ann live?", 2)
    assert found[0].id == new.id and found[1].succeeded_by == new.id
    again = real_memory.remember("I live in Rome.", speaker="Ann", time="2024-01-01", id="back")
    assert again.duplicate_of is None
    assert real_memory.recall("Where does Ann live?", 1)[0].id == "back"


def test_forgetting_a_link_of_a_chain_keeps_the_others_joined(real_memory: TextMemory):
    for text, time, id in HOMES:
        real_memory.remember(text, speaker="Ann", time=time, id=id)
    real_memory.forget("rome")
    assert [r.id for r in real_memory.history("oslo")] == ["paris", "oslo"]
    real_memory.forget("paris")
    assert [r.id for r in real_memory.history("oslo")] == ["oslo"]


def test_the_same_words_on_another_day_are_another_event(real_memory: TextMemory):
    for day in ("2024-01-01", "2024-01-09"):
        record = real_memory.remember("I ran ten miles yesterday.", speaker="Ann", time=day)
        assert record.duplicate_of is None


def test_generated_chains_lead_with_their_latest(real_memory: TextMemory):
    right = asked = 0
    for wording in range(3):
        chat = updates(100, wording)
        path = real_memory.store.path
        with TextMemory(path, chat.name, encoder=real_memory.encoder) as memory:
            for turn in chat.said:
                memory.remember(turn.text, speaker=turn.speaker, time=turn.time, id=turn.id)
            for question in chat.asked:
                found = memory.recall(question.text, 1, at=question.at)[0]
                right += bool(question.answers & {found.id, *found.duplicates})
                asked += 1
    assert asked > 30 and right / asked >= 0.95
