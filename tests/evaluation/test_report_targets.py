"""The targets table: verdicts follow from the records, and change with them."""

import dataclasses
from collections.abc import Mapping

import pytest

from evaluation.report_records import named, record, speeds
from titans.evaluation.records import Record, Value, accuracy_score, mean_score
from titans.evaluation.report_target_parts import Target, verdict
from titans.evaluation.report_targets import targets_section
from titans.evaluation.report_targets_sweeps import (
    ablation_targets,
    depth_target,
    direction,
    language_targets,
)
from titans.evaluation.report_targets_tasks import (
    needle_targets,
    question_targets,
    recall_targets,
)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([True, True], "met"),
        ([True, False, None], "partly, 1 of 3"),
        ([False, None], "missed"),
        ([None, None], "no record"),
    ],
)
def test_a_part_without_a_record_is_never_reached(parts: list[bool | None], expected: str) -> None:
    assert verdict(parts) == expected


def test_without_records_every_row_says_so_and_points_to_the_log() -> None:
    rows = [line for line in targets_section([]).splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 21
    assert all("| no record | [log](log/evaluation.md) |" in row for row in rows)


def recall(name: str, value: float, *, state: int = 4_096, minutes: float = 60.0) -> Record:
    scores = [
        accuracy_score([value] * 4, length=64, detail={"pairs": 4}),
        mean_score([7.0], "state_bytes", length=64),
    ]
    return named(record("mqar", scores, setting="b"), name, state_numbers=state, minutes=minutes)


def test_recall_is_compared_at_equal_state_and_budget() -> None:
    rivals = [recall("delta 64", 0.5), recall("gated_delta 64", 0.75), recall("ttt 64", 0.25)]
    ahead, aim, *_ = recall_targets([recall("titans 64", 1.0), *rivals])
    assert (ahead.verdict, aim.verdict) == ("met", "met")
    assert "`titans 64` 100.0, `delta 64` 50.0" in ahead.measured
    ahead, aim, *_ = recall_targets([recall("titans 64", 0.6), *rivals])
    assert (ahead.verdict, aim.verdict) == ("partly, 2 of 3", "missed")
    rivals[0] = recall("delta 64", 0.5, minutes=4.0)
    ahead, *_ = recall_targets([recall("titans 64", 1.0), *rivals])
    assert ahead.verdict == "partly, 2 of 3" and "of another state or budget" in ahead.measured
    linear = [recall("titans linear 64", 1.0), *rivals]
    assert recall_targets(linear)[0].verdict == "no record", "depth 1 is not the deep memory"


def needles(
    name: str, variant: str, values: Mapping[str, float], samples: int = 100, **settings: object
) -> Record:
    scores = [
        accuracy_score([value] * samples, length=16_384, detail={"kind": kind})
        for kind, value in values.items()
    ]
    return of_variant(named(record("s-niah", scores), name, **settings), variant)


def of_variant(found: Record, variant: str) -> Record:
    return dataclasses.replace(found, model=dataclasses.replace(found.model, variant=variant))


def verdicts(targets: list[Target]) -> list[str]:
    return [target.verdict for target in targets]


def test_needles_need_mac_a_second_variant_and_a_hundred_samples() -> None:
    mac = needles("a", "mac", {"pk": 1.0, "n": 0.96, "w": 0.0})
    lmm = needles("b", "lmm", {"pk": 0.99, "n": 0.5})
    assert verdicts(needle_targets([mac, lmm])) == [
        "met",
        "partly, 1 of 2",
        "reported",
        "no record",
        "partly, 2 of 12",
    ]
    few = needles("b", "lmm", {"pk": 0.99}, samples=99)
    assert needle_targets([mac, few])[0].verdict == "partly, 1 of 2"
    ttt = needles("b", "lmm", {"pk": 0.99}, memory_rule="ttt")
    assert needle_targets([mac, ttt])[0].verdict == "partly, 1 of 2", "a baseline is no variant"


@pytest.mark.parametrize(
    ("value", "state", "expected"),
    [(1.0, 7.0, "met"), (0.9, 7.0, "missed"), (1.0, 8.0, "missed")],
)
def test_a_needle_in_two_million_tokens_needs_a_flat_state(
    value: float, state: float, expected: str
) -> None:
    pk: dict[str, Value] = {"kind": "pk"}
    scores = [
        accuracy_score([value] * 20, length=2 << 20, detail=pk),
        mean_score([state], "state_bytes", length=2 << 20, detail=pk),
        mean_score([7.0], "state_bytes", length=2_048, detail=pk),
    ]
    far = needle_targets([of_variant(record("s-niah", scores), "lmm")])[3]
    assert far.verdict == expected and "state of 7" in far.measured


def questions(name: str, near: float, far: float) -> Record:
    scores = [
        accuracy_score([value] * 4, length=length, detail={"task": "qa1"})
        for length, value in ((16_384, near), (131_072, far))
    ]
    return of_variant(named(record("babilong", scores), name), "mac")


def test_one_mac_must_answer_at_both_lengths() -> None:
    split = [questions("near", 1.0, 0.5), questions("far", 0.5, 1.0)]
    assert verdicts(question_targets(split)) == ["partly, 1 of 2", "no record"]
    both = question_targets([*split, questions("both", 0.95, 0.9)])[0]
    assert both.verdict == "met" and "`both`: 95.0 at 16K, 90.0 at 128K" in both.measured


def bits(sweep: str, row: str, values: tuple[float, float], seed: int = 0) -> Record:
    scores = [
        mean_score([value] * 2, "bits_per_byte", length=length, detail=detail)
        for length, value, detail in (
            (2_048, 0.0, {"from": 1, "to": 2}),
            (256, values[0], {}),
            (2_048, values[1], {}),
        )
    ]
    found = named(record("lm", scores, text="enwik8-test.txt@0"), f"{row}-seed{seed}")
    return dataclasses.replace(found, sweep=sweep)


def test_every_variant_is_held_against_both_baselines_at_both_lengths() -> None:
    rows = {"lmm": 2.0, "mac": 2.0, "mag": 2.0, "mal": 2.5}
    ours = [bits("language", row, (value, value)) for row, value in rows.items()]
    plain = [bits("language", row, (3.0, 4.0)) for row in ("transformer", "sliding-window")]
    better = [
        bits("language", "transformer-with-convolution", (2.25, 3.0)),
        bits("language", "sliding-window-with-convolution", (2.25, 2.25)),
    ]
    found = language_targets([*ours, *plain, *better])
    assert verdicts(found) == ["met", "partly, 13 of 16", "no record", "no record"]
    assert "at 2K `lmm` 2.0000" in found[0].measured and "`transformer` 4.0000" in found[0].measured
    assert language_targets([*ours, *plain[:1]])[0].verdict == "partly, 8 of 16"


def test_directions_are_measured_against_the_spread() -> None:
    assert direction([1.0, 1.0], [2.0, 2.2], higher_is_better=True) == "worse"
    assert direction([1.0, 1.0], [2.0, 2.2], higher_is_better=False) == "better"
    assert direction([1.0, 3.0], [2.0, 2.2], higher_is_better=True) == "within the spread"


def test_ablations_are_worse_on_both_on_one_or_on_none() -> None:
    def both(row: str, accuracy: float, text: float) -> list[Record]:
        score = accuracy_score([accuracy] * 4, length=64, detail={"pairs": 4})
        found = named(record("mqar", [score], setting="b"), f"{row}-seed0")
        return [
            dataclasses.replace(found, sweep="recall"),
            bits("ablation", row, (text, 9.0)),
        ]

    records = [
        *both("full", 0.75, 2.0),
        *both("linear-memory", 0.5, 3.0),
        *both("no-convolution", 0.5, 1.0),
        *both("no-momentum", 1.0, 1.0),
        bits("ablation", "no-persistent-memory", (3.0, 9.0)),
    ]
    found = ablation_targets(records)
    assert verdicts(found) == ["met", "partly, 1 of 2", "missed", "no record", "partly, 1 of 2"]
    assert "recall: 50.0 ± 0.0 against 75.0 ± 0.0, worse" in found[0].measured
    assert "recall (`mac` of the sweep `variants`): no record" in found[4].measured
    for row, accuracy in (("mac", 1.0), ("mac-without-persistent-memory", 0.5)):
        of_variants, _ = both(row, accuracy, 0.0)
        records.append(dataclasses.replace(of_variants, sweep="variants"))
    found = ablation_targets(records)
    assert found[4].verdict == "met", "LMM has no persistent memory: MAC is compared with MAC"
    measured = "recall (`mac` of the sweep `variants`): 50.0 ± 0.0 against 100.0 ± 0.0, worse"
    assert measured in found[4].measured


def test_depths_are_those_of_the_records_and_all_must_be_there() -> None:
    rows = {"linear-memory": (1, 0.75), "full": (2, 1.0), "depth-3": (3, 0.5), "depth-4": (4, 0.25)}
    recalled = [
        dataclasses.replace(recall(f"{row}-seed0", value), sweep="recall")
        for row, (_, value) in rows.items()
    ]
    recalled = [
        named(found, found.model.name, memory_depth=depth)
        for found, (depth, _) in zip(recalled, rows.values(), strict=True)
    ]
    ablated = dataclasses.replace(recall("no-momentum-seed0", 0.0), sweep="recall")
    fast = [speeds({2_048: 100.0 * n}, phase="train", depth=n) for n in (4, 3, 2, 1)]
    others = [speeds({2_048: 9.0}, phase="train"), speeds({2_048: 9.0}, phase="decode", depth=1)]
    found = depth_target([*recalled, ablated, *fast, *others])
    assert found.verdict == "reported"
    assert found.measured == (
        "depth 1 / 2 / 3 / 4: recall 75.0 ± 0.0 / 100.0 ± 0.0 / 50.0 ± 0.0 / 25.0 ± 0.0; "
        "training of `stand-in` at 2K (tokens/s) 100 / 200 / 300 / 400"
    )
    few = depth_target([*recalled, *fast[1:]])
    assert few.verdict == "partly, 7 of 8" and few.measured.endswith("300 / no record")
    assert depth_target(recalled).verdict == "partly, 4 of 8"
