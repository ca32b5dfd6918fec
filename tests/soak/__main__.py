"""Run the soak: all suites in turn for some minutes, or a number of trials of each."""

import argparse
import contextlib
import sys
import time
from collections import Counter, defaultdict

from soak import driver


def main() -> int:
    """Run what was asked for; 1 if a trial failed."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("suites", nargs="*", help="beginnings of names (all)")
    parser.add_argument("--minutes", type=float, help="for how long, over all suites (10)")
    parser.add_argument("--trials", type=int, help="how many of each suite, however long it takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--list", action="store_true", help="only name the suites")
    args = parser.parse_args()
    chosen = driver.suites(args.suites)
    if args.list:
        for one in chosen:
            print(f"{one.name:<18} {one.about}")
        return 0
    tallies: dict[str, driver.Tally] = defaultdict(driver.Tally)
    end = time.monotonic() + 60 * (args.minutes or 10)
    number, most = args.first, None if args.trials is None else args.first + args.trials
    # In turn, so that every suite has as many trials whenever the time is over.
    with contextlib.suppress(KeyboardInterrupt):  # what was done until then is shown
        while number != most and (most is not None or time.monotonic() < end):
            for one in chosen:
                driver.run_trial(one, args.seed, number, tallies[one.name])
            number += 1
    print(f"seed {args.seed}, trials {args.first} to {number - 1}")
    for one in chosen:
        driver.show(one, tallies[one.name])
    total = sum((tally.done for tally in tallies.values()), Counter())
    failed = sum(len(tally.failures) for tally in tallies.values())
    print(f"in all: {', '.join(f'{n} {w}' for w, n in sorted(total.items()))}; {failed} failed")
    return int(any(tally.failures for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
