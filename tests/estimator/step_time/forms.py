"""One latency form of each kind, with coefficients that are easy to compute with."""

from sloserve.estimator.step_time.latency import BatchFit, Bilinear, DecodeLine, DistServe, Hinge

HINGE = Hinge(
    free_tokens=100,
    base_ms=10.0,
    token_ms=0.05,
    seq_ms=-0.02,
    context_token_ms=1e-4,
    attention_token2_ms=2e-6,
    prefix_attention_token2_ms=1e-6,
    decode=DecodeLine(base_ms=9.0, context_token_ms=2e-4, seq_ms=0.03),
)
DISTSERVE = DistServe(
    prefill_base_ms=22.0,
    prefill_token_ms=0.14,
    prefill_attention_token2_ms=8e-6,
    small_batch_below=95,
    decode_small=DecodeLine(base_ms=23.5, context_token_ms=6e-4, seq_ms=0.06),
    decode_large=DecodeLine(base_ms=20.2, context_token_ms=5e-4, seq_ms=0.12),
)
BILINEAR = Bilinear(
    prefill=BatchFit(alpha_ms=0.1, beta_ms=5.7, gamma_ms=0.01, delta_ms=43.67),
    decode=BatchFit(alpha_ms=0.0002, beta_ms=0.275, gamma_ms=0.00088, delta_ms=15.85),
)
