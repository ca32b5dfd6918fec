"""`titans generate` (and `titans-infer`): continue a text with a trained model, streaming.

The whole state of a model has constant size, so `--state-out` keeps what was read, however long it
was, and `--state-in` goes on from it in another process.
"""

import argparse
import sys

from titans.cli.values import LARGEST_SEED, known_device, number, whole
from titans.errors import DataError
from titans.files import check_target, check_unicode, read_stdin, read_text

EXAMPLES = """examples:
  titans generate demo --prompt "Mary went to the garden. Question: Where is Mary? Answer:"
  titans generate runs/mac --prompt "Once upon a time" --max-new-tokens 200
  titans generate runs/mac --prompt-file book.txt --max-new-tokens 0 --state-out b.st
  titans generate runs/mac --state-in b.st --prompt "Who is Ahab?" --json
  cat letter.txt | titans generate runs/mac --temperature 0
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.epilog = EXAMPLES
    parser.add_argument("checkpoint", help="folder of a run or of a model, or `demo`")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", help="text to continue")
    source.add_argument("--prompt-file", help="file with the text; - is standard input")
    parser.add_argument("--max-new-tokens", type=whole(0), default=128, metavar="N")
    parser.add_argument("--temperature", type=number(0), default=0.8, help="0: most likely token")
    parser.add_argument(
        "--top-k", type=whole(0), default=0, help="among the k most likely (0: all)"
    )
    parser.add_argument(
        "--top-p", type=number(0, 1, above=True), default=1.0, help="among the likeliest, up to p"
    )
    parser.add_argument("--seed", type=whole(0, LARGEST_SEED), help="same seed, same text")
    parser.add_argument("--state-in", metavar="FILE", help="go on from this state")
    parser.add_argument("--state-out", metavar="FILE", help="save the state after the last token")
    parser.add_argument(
        "--memory", choices=("live", "frozen", "off"), default="live", help="what the memory does"
    )
    parser.add_argument(
        "--write-threshold", type=number(0), help="write only tokens with a step size above this"
    )
    parser.add_argument("--device", type=known_device, default="cpu", help="cpu, cuda, ...")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the text")


def run(args: argparse.Namespace) -> int:
    """Read the prompt, then write tokens as they come."""
    import json
    import time

    import torch

    from titans.models.generation import Sampling, TextStream, continue_from, read

    sampling = Sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
    if args.state_out:
        check_target(args.state_out)
    prompt = _prompt(args)
    model, tokenizer = _load(args)
    ids = _encode(tokenizer, prompt, is_start=args.state_in is None).to(args.device)
    cache = _cache(model, args)

    begin = time.perf_counter()
    logits = _read_with_progress(read, model, ids, cache)
    read_seconds = time.perf_counter() - begin

    generator = torch.Generator(device=args.device)
    if args.seed is not None:
        generator.manual_seed(args.seed)
    else:
        generator.seed()
    tokens = continue_from(
        model,
        cache,
        logits,
        max_new_tokens=args.max_new_tokens,
        sampling=sampling,
        stop_ids=_stop_ids(model, tokenizer),
        generator=generator,
    )
    begin, stream, texts, count = time.perf_counter(), TextStream(tokenizer), [], 0
    for token in tokens:
        count += 1
        texts.append(stream.push(token))
        if not args.json:
            print(texts[-1], end="", flush=True)
    texts.append(stream.finish())
    seconds = time.perf_counter() - begin
    if args.state_out:
        cache.save(args.state_out)
    if not args.json:
        print(texts[-1])
        return 0
    report = {
        "text": "".join(texts),
        "prompt_tokens": ids.shape[1],
        "new_tokens": count,
        "position": int(cache.position[0]),
        "read_seconds": round(read_seconds, 4),
        "read_tokens_per_second": round(ids.shape[1] / max(read_seconds, 1e-9), 1),
        "generate_seconds": round(seconds, 4),
        "generate_tokens_per_second": round(count / max(seconds, 1e-9), 1),
        "state_bytes": cache.num_bytes,
        "variant": model.config.variant,
    }
    print(json.dumps(report))
    return 0


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        text = args.prompt
    elif args.prompt_file and args.prompt_file != "-":
        text = read_text(args.prompt_file)
    elif args.prompt_file == "-" or not sys.stdin.isatty():
        text = read_stdin()
    else:
        raise DataError("no prompt: give --prompt TEXT, --prompt-file FILE, or pipe a text in")
    if not text:
        raise DataError("the prompt is empty: the model needs at least one token to go on from")
    check_unicode(text, "the prompt")
    return text


def _load(args: argparse.Namespace):
    """Model and tokenizer of a checkpoint folder."""
    from titans.models.checkpoint import load

    model, tokenizer = load(args.checkpoint)
    model.to(args.device)
    model.set_memory_mode(args.memory)
    if args.write_threshold is not None:
        model.set_write_threshold(args.write_threshold)
    return model, tokenizer


def _encode(tokenizer, text: str, *, is_start: bool):
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=is_start)["input_ids"]
    if ids.shape[1] == 0:
        raise DataError("the prompt holds no token")
    return ids


def _cache(model, args: argparse.Namespace):
    from titans.models import TitansCache

    if args.state_in is None:
        return model.new_cache(1)
    cache = TitansCache.load(args.state_in).to(args.device)
    cache.check_fits(model.config)
    cache.check_writer(model.model)
    if cache.batch != 1:
        raise DataError(f"{args.state_in}: holds {cache.batch} rows; titans generate takes one")
    return cache


def _read_with_progress(read, model, ids, cache):
    """Read the prompt; a bar on stderr if it takes longer than two seconds."""
    from tqdm import tqdm

    with tqdm(
        total=ids.shape[1], unit="token", desc="reading", delay=2, leave=False, file=sys.stderr
    ) as bar:
        return read(model, ids, cache, on_piece=bar.update)


def _stop_ids(model, tokenizer) -> frozenset[int]:
    named = [model.generation_config.eos_token_id, tokenizer.eos_token_id]
    flat = [i for n in named if n is not None for i in (n if isinstance(n, list) else [n])]
    return frozenset(flat)
