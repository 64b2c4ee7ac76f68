"""The experiments of the papers' pages, each a row with the flags of ``sloserve simulate``. New work adds rows, not
scripts.

``benchmarks/pyproject.toml`` registers them, so that ``sloserve simulate --experiment NAME`` runs one in a checkout.
"""

from typing import Any

from sloserve.sim.experiments import ExperimentRow

_RIVALS = "stock,fcfs,priority,edf,sjf"
_BUDGETED = (
    "stock,edf,edf:step_budget=true,niyama:step_budget=true,sjf:step_budget=true,andes:step_budget=true,"
    "econo:step_budget=true,auto"
)
_ANNEALED = (
    "stock,edf,edf:step_budget=true,niyama:step_budget=true,sjf:step_budget=true,sa,sa:step_budget=true,sa-batches,auto"
)
_OVERLOADED = {
    "profile": "h100-llama3-8b",
    "load": "2",
    "max_requests": 1000,
    "max_num_batched_tokens": 512,
    "policy": "stock,edf:step_budget=true,niyama:step_budget=true,sjf:step_budget=true,auto",
    "admission": (
        "none,cap:max_waiting=16,vllm:max_num_queued_tokens=4000,vllm:max_num_queued_tokens=16000,"
        "predict:min_chance=0.1,predict:min_chance=0.5"
    ),
}
_READERS: dict[str, Any] = {
    "load": "0.5,1,1.5,2,2.5",
    "max_requests": 1000,
    "policy": (
        "stock,rr,edf:step_budget=true,niyama:step_budget=true,sjf:step_budget=true,sjf:length=oracle,andes,"
        "andes:step_budget=true,auto"
    ),
}
"""Andes, Sec. 6.1: rivals of QoE-aware scheduling and loads beyond the capacity; profiles and sizes are ours."""
_READERS_OPT = _READERS | {"profile": "a100-opt-13b"}
_READERS_TRACE = _READERS | {"profile": "h100-llama3-8b", "kv_blocks": 3000, "slo": "reading"}
_ANDES_PARTS = ",".join(
    (
        "stock",
        "andes",
        "andes-parts:watermark=0",
        "andes:preemption_cap=0",
        "andes:preemption_cap=0.25",
        "andes:preemption_cap=0.5",
        "andes:max_preemptions=3",
        "andes-parts:horizon_s=2",
        "andes-parts:horizon_s=30",
        "andes-parts:objective=min",
        "andes-parts:objective=perfect",
        "andes-parts:alpha=0.9",
        "andes-parts:pause=false",
        "andes:headroom=0",
        "andes-parts:headroom=0:pause=false",
        "andes:lead_s=10",
        "andes:lead_s=80",
        "andes-parts:victims=gain",
        "andes-parts:victims=gain:urgent_s=1000:headroom=0",
        "andes:length=oracle",
        "andes:length=oracle:length_error=0.25",
        "andes:length=oracle:length_error=0.5",
    )
)
"""Each part of ``andes`` taken away or varied; that with four options is nearest to the paper."""

_ANDES_PAPER: dict[str, Any] = {
    "workload": "reading-speed",
    "max_requests": 700,
    "swap_space_gib": 48,
    "swapping": "always",
    "plan_share": 1.0,
}
"""Andes, Sec. 6.1: preemption by swapping."""
_ANDES_66B: dict[str, Any] = _ANDES_PAPER | {
    "load": "1,1.25,1.5,2,2.5",
    "max_requests": 500,
    "swap_space_gib": 240,
    "policy": (
        "stock,fcfs,rr,edf:step_budget=true,niyama:step_budget=true,andes,andes:step_budget=true,andes-paper,auto"
    ),
}
_ANDES_OPTIONS = ",".join(
    (
        "stock",
        "andes-paper",
        *(f"andes-paper:preemption_cap={cap}" for cap in ("0", "0.2", "0.4", "0.6", "0.8")),
        *(f"andes-paper:horizon_s={horizon_s}" for horizon_s in ("2", "10", "25", "50", "100", "200")),
    )
)
"""Andes, Fig. 16 and 17: one option varied, the other as published (a cap of 1, the mean time of a reply)."""
_ANDES_SOLVERS: dict[str, Any] = {
    "profile": "a100-opt-13b-12gb",
    "load": "1.5",
    "max_requests": 400,
    "policy": "stock,fcfs,andes,andes-paper,andes-paper:solver=dp",
}

_TIGHT_OPT: dict[str, Any] = {
    "profile": "a100-opt-13b-12gb",
    "load": "0.5,0.75,1,1.25,1.5,2,2.5",
    "max_requests": 500,
    "policy": (
        "stock,edf:step_budget=true,niyama:step_budget=true,sjf:step_budget=true,sjf:length=oracle,andes:step_budget=true,"
        "econo,econo:step_budget=true,econo:late_last=true,econo:length=oracle,auto"
    ),
}
_TIGHT_SCALED: dict[str, Any] = _TIGHT_OPT | {
    "workload": "sharegpt-poisson",
    "load": "1,1.5",
    "max_requests": 400,
    "policy": (
        "stock,edf:step_budget=true,niyama:step_budget=true,sjf:step_budget=true,sjf:length=oracle,econo,"
        "econo:length=oracle,auto"
    ),
}
_TIGHT_TRACE = _TIGHT_OPT | {"profile": "h100-llama3-8b", "kv_blocks": 3000}
"""EconoServe, Sec. 4: SLO-scale 2. Latencies of a prompt and a token: stock's at 0.01 requests/s, 100 requests."""
_ECONO_PARTS = (
    "stock,edf,edf:preempt=false,sjf,orca,srtf:length=oracle,fastserve,sarathi,multires:length=oracle,"
    "sync-coupled:length=oracle,econo-paper:parts=d,econo-paper:parts=sd,econo-paper:parts=sdo,econo-paper,"
    "econo-paper:length=oracle,econo-paper:parts=d:length=oracle:pipeline=future,econo,econo:late_last=true,"
    "econo-parts:order=fcfs,econo-parts:foresee=false,econo-parts:pause=true,econo:preempt=false,econo:sigmas=0,econo:sigmas=2,"
    "econo:sigmas=3,econo:reserve=0,econo:reserve=0.04,econo:length=oracle,econo:length=oracle:length_error=0.3,"
    "econo:length=oracle:preempt=false,econo:length=oracle:tokens_per_step=50,econo:length=oracle:tokens_per_step=500"
)
_ECONO_ERRORS = "econo-paper:length=oracle:length_error=0.3"
_ECONO_PADDING = ",".join(
    (
        "stock",
        *(
            f"{_ECONO_ERRORS}:padding={padding}:reserve=0.03:buffer=0.15"
            for padding in ("-0.6", "-0.45", "-0.3", "-0.15", "0", "0.1", "0.15", "0.2", "0.3", "0.5", "auto")
        ),
        *(
            f"{_ECONO_ERRORS}:padding=auto:reserve={reserve}:buffer=0.15"
            for reserve in ("0.01", "0.02", "0.04", "0.06", "0.1", "auto")
        ),
        *(
            f"{_ECONO_ERRORS}:padding=auto:reserve=0.03:buffer={buffer}"
            for buffer in ("0", "0.05", "0.1", "0.2", "0.3", "auto")
        ),
        *(f"{_ECONO_ERRORS}:padding=auto:reserve=0.03:buffer=0.15:remedy={remedy}" for remedy in ("pause", "preempt")),
    )
)
"""EconoServe, Fig. 4, 5b, 15b to d: one share varied, the others tuned or the paper's; negative paddings are ours."""

_DECODE_FIRST = {
    "profile": "h100-llama3-8b",
    "max_requests": 500,
    "policy": ",".join(
        name + size
        for size in ("", "@max_num_batched_tokens=1024")
        for name in ("stock", "edf", "sjf", "andes", "econo")
    ),
}

EXPERIMENTS = {
    "azure-conv": ExperimentRow(
        "What do auto and its rivals gain over stock on production chat traffic with ample KV?",
        {"profile": "h100-llama3-8b", "load": "0.7,1,1.5,2", "max_requests": 3000, "policy": _BUDGETED},
        trace="azure2023_conv_first_two_thirds.csv.gz",
    ),
    "azure-conv-short-steps": ExperimentRow(
        "As azure-conv, with 512 tokens a step instead of 2,048, so that a TPOT of 50 ms can be kept beside prompts",
        {
            "profile": "h100-llama3-8b",
            "load": "1,1.5",
            "max_requests": 1500,
            "max_num_batched_tokens": 512,
            "policy": "stock,priority,edf,sjf,auto",
        },
        trace="azure2023_conv_first_two_thirds.csv.gz",
    ),
    "azure-conv-scarce-kv": ExperimentRow(
        "As azure-conv, with a tenth of the KV cache, where the choice of victims matters",
        {
            "profile": "h100-llama3-8b",
            "load": "0.7,1,1.5,2",
            "max_requests": 1500,
            "policy": _RIVALS,
            "kv_blocks": 3000,
        },
        trace="azure2023_conv_first_two_thirds.csv.gz",
    ),
    "sa-azure-conv": ExperimentRow(
        "What does annealing gain online, with 512 tokens a step, compared with simple orders?",
        {
            "profile": "h100-llama3-8b",
            "load": "0.7,1,1.5",
            "max_requests": 400,
            "max_num_batched_tokens": 512,
            "policy": _ANNEALED,
        },
        trace="azure2023_conv_first_two_thirds.csv.gz",
    ),
    "sa-servegen": ExperimentRow(
        "As sa-azure-conv, on a mix of many clients with 2,048 tokens a step",
        {
            "profile": "h100-llama3-8b",
            "load": "0.7,1,1.5",
            "max_requests": 400,
            "policy": _ANNEALED,
        },
        trace="servegen_mlarge_day2_10h.csv.gz",
    ),
    "azure-code": ExperimentRow(
        "As azure-conv, on bursts of long prompts with short replies",
        {"profile": "h100-llama3-8b", "load": "0.7,1,1.5", "max_requests": 1500, "policy": _RIVALS},
        trace="azure2023_code_first_two_thirds.csv.gz",
    ),
    "mooncake-conversation": ExperimentRow(
        "As azure-conv, with long prompts that share prefixes",
        {"profile": "h200-llama3-8b", "load": "0.7,1,1.5", "max_requests": 500, "policy": _RIVALS},
        trace="mooncake_conversation_first_half.csv.gz",
    ),
    "servegen": ExperimentRow(
        "As azure-conv, on a mix of many clients",
        {"profile": "h100-llama3-8b", "load": "0.7,1,1.5", "max_requests": 1500, "policy": _RIVALS},
        trace="servegen_mlarge_day2_10h.csv.gz",
    ),
    "sharegpt-opt13b": ExperimentRow(
        "As azure-conv, in the papers' setting: ShareGPT-like lengths on OPT-13B with 12 GB of KV",
        {
            "workload": "sharegpt-poisson",
            "profile": "a100-opt-13b-12gb",
            "load": "0.7,1,1.5",
            "max_requests": 1000,
            "policy": _RIVALS,
        },
    ),
    "admission-azure-conv": ExperimentRow(
        "Which requests to refuse at twice the capacity: by a cap, by vLLM's cap on tokens, or by prediction?",
        _OVERLOADED,
        trace="azure2023_conv_first_two_thirds.csv.gz",
    ),
    "admission-servegen": ExperimentRow(
        "As admission-azure-conv, on a mix of many clients", _OVERLOADED, trace="servegen_mlarge_day2_10h.csv.gz"
    ),
    "qoe-reading": ExperimentRow(
        "How much load keeps readers at a mean QoE of 0.9, in the Andes paper's setting but with OPT-13B?",
        _READERS_OPT | {"workload": "reading-speed"},
    ),
    "qoe-reading-gamma3": ExperimentRow(
        "As qoe-reading, in bursts", _READERS_OPT | {"workload": "reading-speed-gamma3"}
    ),
    "qoe-multiround": ExperimentRow(
        "As qoe-reading, with prompts three times as long", _READERS_OPT | {"workload": "multiround"}
    ),
    "qoe-voice": ExperimentRow(
        "As qoe-reading, for listeners, who need two thirds of that speed", _READERS_OPT | {"workload": "voice"}
    ),
    "qoe-azure-conv": ExperimentRow(
        "As qoe-reading, on production chat traffic with a tenth of the KV cache",
        _READERS_TRACE,
        trace="azure2023_conv_first_two_thirds.csv.gz",
    ),
    "qoe-azure-code": ExperimentRow(
        "As qoe-reading, on bursts of long prompts with short replies, where stock fails long before its capacity",
        _READERS_TRACE | {"load": "0.1,0.25,0.5,1,1.5"},
        trace="azure2023_code_first_two_thirds.csv.gz",
    ),
    "qoe-servegen": ExperimentRow(
        "As qoe-reading, on a mix of many clients", _READERS_TRACE, trace="servegen_mlarge_day2_10h.csv.gz"
    ),
    "qoe-parts-reading": ExperimentRow(
        "What does each part of andes contribute, and how much do lengths matter?",
        _READERS_OPT | {"workload": "reading-speed", "load": "1.5,2.5", "policy": _ANDES_PARTS},
    ),
    "qoe-parts-azure-conv": ExperimentRow(
        "As qoe-parts-reading, on production chat traffic",
        _READERS_TRACE | {"load": "1.5,2.5", "policy": _ANDES_PARTS},
        trace="azure2023_conv_first_two_thirds.csv.gz",
    ),
    "andes-paper": ExperimentRow(
        "Andes in the form of its paper, with its swap space and a plan at every step, beside stock's order and andes",
        _ANDES_PAPER
        | {
            "profile": "a100-opt-13b",
            "load": "1,1.5,2.5",
            "swap_space_gib": 240,
            "policy": f"{_ANDES_66B['policy']},andes-paper:preemption_cap=0,andes-paper:preemption_cap=0.4",
        },
    ),
    "andes-opt-66b": ExperimentRow(
        "As andes-paper, with the paper's main model, OPT-66B on four A100", _ANDES_66B | {"profile": "a100x4-opt-66b"}
    ),
    "andes-opt-66b-a40": ExperimentRow(
        "As andes-opt-66b, on four A40, whose steps are not much faster than readers",
        _ANDES_66B | {"profile": "a40x4-opt-66b", "load": "0.5,0.75,1,1.5,2.5"},
    ),
    "andes-opt-66b-bursts": ExperimentRow(
        "As andes-opt-66b, in bursts", _ANDES_66B | {"profile": "a100x4-opt-66b", "workload": "reading-speed-gamma3"}
    ),
    "andes-opt-66b-multiround": ExperimentRow(
        "As andes-opt-66b, with prompts three times as long",
        _ANDES_66B | {"profile": "a100x4-opt-66b", "workload": "multiround"},
    ),
    "andes-opt-66b-voice": ExperimentRow(
        "As andes-opt-66b, for listeners", _ANDES_66B | {"profile": "a100x4-opt-66b", "workload": "voice"}
    ),
    "andes-opt-66b-options": ExperimentRow(
        "How much do the cap of preemptions and the horizon of Andes matter?",
        _ANDES_66B | {"profile": "a100x4-opt-66b", "load": "1.5,2.5", "policy": _ANDES_OPTIONS},
    ),
    "andes-opt-30b": ExperimentRow(
        "As andes-opt-66b, with OPT-30B on four A100", _ANDES_66B | {"profile": "a100x4-opt-30b"}
    ),
    "andes-opt-175b": ExperimentRow(
        "As andes-opt-66b, with OPT-175B in eight bits on four A100, whose KV cache is very short",
        _ANDES_66B | {"profile": "a100x4-opt-175b-int8"},
    ),
    "andes-solvers": ExperimentRow(
        "Does the exact solver of Andes pay, if its time is charged?",
        _ANDES_PAPER | _ANDES_SOLVERS,
    ),
    "andes-solvers-free": ExperimentRow(
        "As andes-solvers, if planning took no time",
        _ANDES_PAPER | _ANDES_SOLVERS | {"plan_cost": 0.0},
    ),
    "econo-sharegpt": ExperimentRow(
        "How much load at equal latency per token, in the EconoServe paper's setting, ShareGPT-like lengths?",
        _TIGHT_OPT | {"workload": "sharegpt-poisson", "slo": "scaled:prompt_ms=49.5:token_ms=23.8"},
    ),
    "econo-sharegpt-scale-1.5": ExperimentRow(
        "As econo-sharegpt, with tighter targets",
        _TIGHT_SCALED | {"slo": "scaled:prompt_ms=49.5:token_ms=23.8:scale=1.5"},
    ),
    "econo-sharegpt-scale-2.5": ExperimentRow(
        "As econo-sharegpt, with looser targets",
        _TIGHT_SCALED | {"slo": "scaled:prompt_ms=49.5:token_ms=23.8:scale=2.5"},
    ),
    "econo-alpaca": ExperimentRow(
        "As econo-sharegpt, with short instructions",
        _TIGHT_OPT | {"workload": "alpaca-poisson", "slo": "scaled:prompt_ms=25.5:token_ms=23.6", "max_requests": 1500},
    ),
    "econo-bookcorpus": ExperimentRow(
        "As econo-sharegpt, with chunks of books, of which five or six fill the cache (OPT's context is doubled)",
        _TIGHT_OPT
        | {"workload": "bookcorpus-poisson", "slo": "scaled:prompt_ms=344.5:token_ms=25.4", "max_model_len": 4096},
    ),
    "econo-llama-33b": ExperimentRow(
        "As econo-sharegpt, with Llama-33B on two A100 with the paper's 19.2 GB of KV",
        _TIGHT_OPT
        | {
            "profile": "a100x2-llama-33b",
            "kv_blocks": 751,
            "workload": "sharegpt-poisson",
            "slo": "scaled:prompt_ms=46.1:token_ms=27.7",
        },
    ),
    "econo-opt-175b": ExperimentRow(
        "As econo-sharegpt, with OPT-175B on eight A100",
        _TIGHT_OPT
        | {
            "profile": "a100x8-opt-175b",
            "workload": "sharegpt-poisson",
            "slo": "scaled:prompt_ms=65.7:token_ms=37",
        },
    ),
    "econo-azure-conv": ExperimentRow(
        "As econo-sharegpt, on production chat traffic with a tenth of the KV cache",
        _TIGHT_TRACE | {"slo": "scaled:prompt_ms=31.5:token_ms=7.8", "max_requests": 1000},
        trace="azure2023_conv_first_two_thirds.csv.gz",
    ),
    "econo-azure-code": ExperimentRow(
        "As econo-sharegpt, on bursts of long prompts with short replies",
        _TIGHT_TRACE | {"slo": "scaled:prompt_ms=61.3:token_ms=8", "load": "0.1,0.25,0.5,0.75,1,1.5"},
        trace="azure2023_code_first_two_thirds.csv.gz",
    ),
    "econo-servegen": ExperimentRow(
        "As econo-sharegpt, on a mix of many clients",
        _TIGHT_TRACE | {"slo": "scaled:prompt_ms=29.2:token_ms=8", "max_requests": 1000},
        trace="servegen_mlarge_day2_10h.csv.gz",
    ),
    "econo-parts": ExperimentRow(
        "What does each part of EconoServe contribute, compared with the paper's baselines?",
        _TIGHT_OPT
        | {
            "workload": "sharegpt-poisson",
            "slo": "scaled:prompt_ms=49.5:token_ms=23.8",
            "load": "1,1.5",
            "policy": _ECONO_PARTS,
        },
    ),
    "econo-padding": ExperimentRow(
        "How much padding, reserve and buffer does EconoServe need, and what if they are tuned online?",
        _TIGHT_OPT
        | {
            "workload": "sharegpt-poisson",
            "slo": "scaled:prompt_ms=49.5:token_ms=23.8",
            "load": "1",
            "max_requests": 400,
            "policy": _ECONO_PADDING,
        },
    ),
    "decode-first-azure-code": ExperimentRow(
        "What is gained by decodes before unfinished prompts, on bursts of long prompts?",
        _DECODE_FIRST | {"load": "1"},
        trace="azure2023_code_first_two_thirds.csv.gz",
    ),
    "decode-first-azure-conv": ExperimentRow(
        "As decode-first-azure-code, on production chat traffic",
        _DECODE_FIRST | {"load": "1.5"},
        trace="azure2023_conv_first_two_thirds.csv.gz",
    ),
    "chat-batch-mix": ExperimentRow(
        "How long does chat wait behind a burst of batch jobs?",
        {"workload": "chat-batch-mix", "load": "0.7,1,1.5", "max_requests": 1000, "policy": _RIVALS},
    ),
}
