"""`titans tokenizer train`: learn a byte-level BPE vocabulary from text."""

import argparse
import json
import sys

from titans.cli.values import whole

EXAMPLES = """examples:
  titans tokenizer train corpus.txt --vocab-size 4096 --out tokenizers/corpus-4k
  titans tokenizer train corpus/ --vocab-size 8192 --out tokenizers/corpus-8k --json
  titans train configs/mac.yaml --set data.path=corpus/ --set data.tokenizer=tokenizers/corpus-8k

The default tokenizer, `bytes`, needs no training."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of `titans tokenizer`."""
    parser.epilog = EXAMPLES
    parser.add_argument("action", choices=["train"], help="what to do")
    parser.add_argument("text", help="a text or JSONL file (also .gz), or a folder of them")
    parser.add_argument("--vocab-size", type=whole(), default=4096, help="default: %(default)s")
    parser.add_argument("--out", required=True, help="folder for the tokenizer")
    parser.add_argument("--text-field", default="text", help="the text's key in JSONL lines")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Learn the vocabulary and save it as a Hugging Face tokenizer."""
    from tqdm import tqdm

    from titans.data.corpus import Corpus, find_files
    from titans.data.tokenizer import encode_document, train_bpe
    from titans.files import make_folder

    make_folder(args.out)
    corpus = Corpus(files=find_files(args.text), text_field=args.text_field)
    bar = tqdm(
        corpus.lines(), desc="reading", unit=" lines", unit_scale=True, delay=1, file=sys.stderr
    )
    tokenizer = train_bpe(iter(bar), args.vocab_size)
    tokenizer.save_pretrained(args.out)
    text = next(corpus.documents())[:1_000_000]
    result = {
        "tokenizer": args.out,
        "vocab_size": len(tokenizer),
        "bytes_per_token": len(text.encode()) / len(encode_document(tokenizer, text)),
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(
            f"{args.out}: {result['vocab_size']} tokens, "
            f"{result['bytes_per_token']:.2f} bytes per token of this text"
        )
    return 0
