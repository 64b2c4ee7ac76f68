"""Where the chunks of a prompt may end only at multiples of a block, as for the states of Mamba layers."""


def advancing_tokens(tokens: int, multiple: int, decode_tokens: int) -> int:
    """Return a limit on the tokens of a step, near ``tokens``, under which a prompt is computed beside the decodes.

    vLLM computes none of a prompt that lacks room for a whole block, unless the step's limit itself is below a block.

    Args:
        tokens: The limit that is wanted.
        multiple: Tokens of a block; 1 where chunks end anywhere.
        decode_tokens: Most tokens that all running requests take if each decodes.
    """
    if multiple == 1 or tokens < multiple or tokens - decode_tokens >= multiple:
        return tokens
    return multiple - 1 if multiple - 1 > decode_tokens else decode_tokens + multiple
