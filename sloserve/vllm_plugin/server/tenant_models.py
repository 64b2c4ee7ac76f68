"""Show a tenant only the models and LoRA adapters that its key allows: any other is unknown, as if it did not exist.

vLLM's handlers ask one method whether a model exists, and list models by another; both are wrapped. If the key of a
tenant names models, the tenant gets the same error for a model of another tenant and for one that is not served, and it
names no other model.
"""

import functools
from http import HTTPStatus
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.wire import context
from sloserve.wire.keys import KeyTenant


def install() -> None:
    """Wrap vLLM's handlers in a process of a server with keys; a second call changes nothing.

    Raises: ConfigError where this vLLM has other handlers, which could not be limited.
    """
    try:
        from vllm.entrypoints.openai.models.serving import OpenAIServingModels
        from vllm.entrypoints.pooling.base.serving import PoolingBaseServing
        from vllm.entrypoints.serve.engine.serving import BaseServing
        from vllm.entrypoints.speech_to_text.realtime.connection import RealtimeConnection
        from vllm.exceptions import VLLMNotFoundError
    except ImportError as error:
        raise ConfigError(f"keys: this vLLM has no handlers that can be limited to models ({error})") from error

    if hasattr(BaseServing._check_model, "__wrapped__"):
        return
    stock_check, stock_pooling = BaseServing._check_model, PoolingBaseServing._check_model
    stock_realtime, stock_list = RealtimeConnection._check_model, OpenAIServingModels.show_available_models

    @functools.wraps(stock_check)
    async def check(self: Any, request: Any) -> Any:
        tenant = _limited()
        if tenant is None:
            return await stock_check(self, request)
        if may_use(tenant, request.model, self.models):
            error = await stock_check(self, request)
            if error is None or error.error.code != HTTPStatus.NOT_FOUND.value:
                return error
        return _unknown(self, request.model, tenant, self.models)

    @functools.wraps(stock_pooling)
    async def check_pooling(self: Any, request: Any) -> Any:
        tenant = _limited()
        if tenant is not None and not may_use(tenant, request.model, self.models):
            raise VLLMNotFoundError(f"The model `{request.model}` does not exist.")
        return await stock_pooling(self, request)

    @functools.wraps(stock_realtime)
    def check_realtime(self: Any, model: Any) -> Any:
        tenant, serving = _limited(), self.serving
        if tenant is not None and not may_use(tenant, model, serving.models):
            return _unknown(serving, model, tenant, serving.models)
        return stock_realtime(self, model)

    @functools.wraps(stock_list)
    async def show_available_models(self: Any) -> Any:
        listed, tenant = await stock_list(self), _limited()
        if tenant is not None:
            listed.data = [card for card in listed.data if tenant.may_use(card.id)]
        return listed

    BaseServing._check_model, PoolingBaseServing._check_model = check, check_pooling
    RealtimeConnection._check_model = check_realtime
    OpenAIServingModels.show_available_models = show_available_models


def _limited() -> KeyTenant | None:
    """Return the tenant of the request at hand if its key names models; ``None`` if it may use all."""
    tenant = context.key_tenant.get()
    return None if tenant is None or tenant.models is None else tenant


def may_use(tenant: KeyTenant, model: str | None, served: Any) -> bool:
    """Return whether a tenant may use a model.

    Args:
        tenant: The tenant.
        model: The model that its request names; vLLM serves the base model to a request that names none.
        served: vLLM's models.
    """
    from vllm import envs

    if model:
        # Under this flag vLLM serves the base model to any name that is no adapter's.
        is_named = not envs.VLLM_SKIP_MODEL_NAME_VALIDATION or model in _names(served)
        return is_named and tenant.may_use(model)
    return any(tenant.may_use(path.name) for path in served.base_model_paths)


def _names(served: Any) -> list[str]:
    return [*(path.name for path in served.base_model_paths), *served.lora_requests]


def _unknown(serving: Any, model: str | None, tenant: KeyTenant, served: Any) -> Any:
    """Return the error for an unknown model in vLLM's words, with the names that the tenant may know."""
    aliases = ", ".join(name for name in _names(served) if tenant.may_use(name))
    return serving.create_error_response(
        message=f"The model `{model}` does not exist. Valid aliases: {aliases}.",
        err_type="NotFoundError",
        status_code=HTTPStatus.NOT_FOUND,
        param="model",
    )
