"""Feeds the JSONL reader with broken lines until the time is up: `make fuzz`.

Mutates a small corpus, with pieces of JSON and of broken text. Ends with an exception and the bytes
that caused it, or says how many inputs and rows were read.
"""

import argparse
import random
import sys
import time

from fuzz.jsonl import check

PIECES = [
    *(b"{", b"}", b"[", b"]", b":", b",", b'"', b"\n", b"\r\n", b" ", b"\t", b"\\", b"\x00"),
    *(b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80", b"\xc2\x85", b"\xe2\x80\xa8", b"\xf0\x9f\x98\x80"),
    *(b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\u0000", b"\\u2028", b"\\n", b"\x0c", b"\xa0"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e400", b"-0", b"-0.0", b"01", b"1.", b".5"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"1" * 40),
    *(b'"a"', b'"shard"', b'"prompt"', b'"messages"', b'{"role":"user","content":"x"}'),
    *(b'{"a":1}', b'{"a":1.5,"a":2}', b'{"a":[1,2]}', b'{"a":[]}', b'{"a":{"b":null}}'),
    *(b'"\xc3\xa9"', b"5e-324", b"[" * 1200, b"9" * 4400, b"\x0b"),
]  # fmt: skip
SEEDS = [
    b'{"prompt":"x","a":1}\n{"prompt":"y","a":null}\n',
    b'\xef\xbb\xbf{"a":"b"}\r\n\r\n[1]\nnull\n{"a":1',
    b'{"messages":[{"role":"user","content":"hi"}]}\n{"messages":[]}',
    b'{"a":12345678901234567890123}\n{"a":0.1}\n{"a":"\\ud800"}\n',
]


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    """A seed or a member of the corpus after a few cuts, insertions, repetitions and splices."""
    content = bytearray(rng.choice(SEEDS if rng.random() < 0.5 else corpus))
    for _ in range(rng.randint(1, 8)):
        at, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        match rng.randrange(5):
            case 0:
                content[at:at] = rng.choice(PIECES)
            case 1:
                content[at : min(end, at + 4)] = b""
            case 2:
                content[at:at] = content[at : min(end, at + 64)]
            case 3:
                other = rng.choice(corpus)
                content[at:] = other[rng.randrange(len(other) + 1) :]
            case 4 if at < len(content):
                content[at] = rng.randrange(256)
    return bytes(content[:20_000])


def fuzz(seconds: float, seed: int) -> None:
    """Raises whatever an input raises, with the input on stderr."""
    rng, corpus = random.Random(seed), list(SEEDS)
    end, inputs, rows = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        content = mutated(rng, corpus)
        try:
            rows += check(content)
        except BaseException:
            print(f"input: {content!r}", file=sys.stderr)
            raise
        inputs += 1
        if rng.random() < 0.05:
            if len(corpus) < 500:
                corpus.append(content)
            else:
                corpus[rng.randrange(len(SEEDS), len(corpus))] = content
    print(f"{inputs:,} inputs with {rows:,} rows: none was lost or changed (seed {seed})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    fuzz(chosen.minutes * 60, chosen.seed)


if __name__ == "__main__":
    main()
