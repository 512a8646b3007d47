"""Writes units.parquet, the Parquet part of the sample job: one few-shot family of questions.

Run it from anywhere after changing the questions: python sample_data/make_parquet.py
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TARGET = Path(__file__).with_name("units.parquet")
PREFIX = """\
Convert the quantity into the unit that is asked for. Reply with the number and the unit only.

Question: 3 hours in minutes
Reply: 180 minutes

Question: 2.5 kilometres in metres
Reply: 2500 metres

Question: 4 dozen eggs in eggs
Reply: 48 eggs

Question: 5000 grams in kilograms
Reply: 5 kilograms

Question: 2 weeks in days
Reply: 14 days

Question: 1.5 litres in millilitres
Reply: 1500 millilitres

Question: 300 seconds in minutes
Reply: 5 minutes

Question: 7 centuries in years
Reply: 700 years

"""
QUESTIONS = (
    "5 hours in minutes",
    "4 kilometres in metres",
    "3 dozen rolls in rolls",
    "2000 grams in kilograms",
    "6 weeks in days",
    "2 litres in millilitres",
    "120 seconds in minutes",
    "9 decades in years",
)
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def sample_table() -> pa.Table:
    """The rows, with the same columns as prompts.jsonl."""
    num_rows = len(QUESTIONS)
    return pa.table(
        {
            "id": [f"unit-{idx + 1:02d}" for idx in range(num_rows)],
            "family": ["unit"] * num_rows,
            "prompt": [f"{PREFIX}Question: {question}\nReply:" for question in QUESTIONS],
            "messages": pa.nulls(num_rows, MESSAGES),
            "max_tokens": pa.array([12] * num_rows, pa.int32()),
        }
    )


def main() -> None:
    pq.write_table(sample_table(), TARGET, compression="zstd")
    print(f"wrote {TARGET}", file=sys.stderr)


if __name__ == "__main__":
    main()
