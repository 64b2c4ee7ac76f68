"""Streams a reply from ``sloserve serve`` at reading speed, and says how it went; needs the openai package.

make serve
.venv/bin/python examples/token_buffer.py "Tell me a story" --group 18-24
"""

import argparse

import openai

from sloserve.client import TokenBuffer
from sloserve.client.http_clients import http_client
from sloserve.core.clock import SystemClock
from sloserve.core.speeds import READING


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--group", default="25-44", help="age of the reader: " + ", ".join(g for g, *_ in READING.groups)
    )
    parser.add_argument("--max-tokens", type=int, default=50)
    args = parser.parse_args()

    tds = READING.of(args.group)
    clock = SystemClock()
    http = http_client(args.url, timeout=600.0)  # the SDK's own would use a proxy for this machine, too
    with openai.OpenAI(base_url=f"{args.url}/v1", api_key="none", http_client=http) as client:
        model = client.models.list().data[0].id
        sent_s = clock.now_s()
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": args.prompt}],
            max_tokens=args.max_tokens,
            stream=True,
            extra_headers={"x-slo-tds": f"{tds:.3f}", "x-slo-ttft-ms": "1000"},
            extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        )
        with TokenBuffer(stream, tds=tds, sent_s=sent_s, clock=clock) as buffer:
            for chunk in buffer:
                if chunk.choices:
                    print(chunk.choices[0].delta.content or "", end="", flush=True)
        report = buffer.report()
    print(
        f"\nQoE {report.qoe}, first token after {report.ttft_s} s, {report.tokens} tokens, {len(report.stalls)} stalls"
    )


if __name__ == "__main__":
    main()
