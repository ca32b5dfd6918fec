"""The soak: promises about data, tried again and again under kills, damage, full disks and noise.

    PYTHONPATH=tests python -m soak --minutes 10          every suite, in turn
    PYTHONPATH=tests python -m soak kill --trials 100     suites whose name begins with "kill"
    PYTHONPATH=tests python -m soak kill.import --seed 0 --first 17 --trials 1     one trial again

A trial is a function of a folder and a random generator that raises if a promise is broken, and
returns a word for how it ended. It runs in a process of its own: a crash or a hang is a failure,
too. Reading order: `driver`, `victims` (killing), then the suites.
"""
