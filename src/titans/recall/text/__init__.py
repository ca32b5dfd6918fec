"""Texts: words, stems and times (`words`), passages (`passages`), updates and repeats (`links`)."""
