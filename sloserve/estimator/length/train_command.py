"""``sloserve train-length``."""

from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import app


@app.command("train-length")
def train_length(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA.jsonl",
            help="One request a line: output_tokens or output; prompt, prompt_tokens, max_tokens, task, arrival_s.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="File for the model.")] = Path("length-model.json"),
    text: Annotated[bool, typer.Option(help="Learn from the prompts' text, if the file has it.")] = True,
    seeds: Annotated[int, typer.Option(help="Number of splits to report on.")] = 3,
    held_out: Annotated[
        float,
        typer.Option(
            help="Share of the requests held out in each split: the latest if arrival_s is given, else random ones."
        ),
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Train a model of output lengths on DATA.jsonl.

    Its quality is reported on held-out requests.
    The final model is trained on all of DATA. No model is written if it predicts the held-out requests no better than
    the distribution of their task, and a server leaves out tasks for which it does not. The file holds numbers only;
    predicting needs only numpy. See docs/profile.md.
    """
    from sloserve.estimator.length.train_and_report import train_and_report

    train_and_report(data, out, text=text, seeds=seeds, share=held_out, seed=seed, as_json=as_json)
