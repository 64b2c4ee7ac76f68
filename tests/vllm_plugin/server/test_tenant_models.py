"""Models of a tenant in vLLM's own handlers, which know a base model under two names and one adapter."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.wire import context
from sloserve.wire.keys import KeyTenant
from tests import bounded

pytestmark = pytest.mark.vllm


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.pooling.base.serving import PoolingBaseServing
    from vllm.entrypoints.serve.engine.serving import BaseServing
    from vllm.entrypoints.speech_to_text.realtime.connection import RealtimeConnection

    from sloserve.vllm_plugin.server import tenant_models

    for owner in (BaseServing, PoolingBaseServing, RealtimeConnection):
        monkeypatch.setattr(owner, "_check_model", owner._check_model)  # to be put back
    monkeypatch.setattr(OpenAIServingModels, "show_available_models", OpenAIServingModels.show_available_models)
    tenant_models.install()
    tenant_models.install()
    yield


class Models:
    base_model_paths = (SimpleNamespace(name="chat", model_path="m"), SimpleNamespace(name="alias", model_path="m"))
    lora_requests = {"legal": SimpleNamespace(lora_name="legal", path="p", base_model_name=None)}  # noqa: RUF012

    def is_base_model(self, name: str) -> bool:
        return name in ("chat", "alias")


def checked(kind: type[Any], model: str | None, *models: str) -> Any:
    serving = kind.__new__(kind)
    serving.models, serving.request_logger = Models(), None
    token = context.key_tenant.set(KeyTenant("a", models=frozenset(models) if models else None))
    try:
        found = kind._check_model(serving, SimpleNamespace(model=model))
        return bounded.run(found) if hasattr(found, "__await__") else found
    finally:
        context.key_tenant.reset(token)


def test_a_model_of_another_tenant_is_unknown_in_the_words_for_one_that_nobody_serves() -> None:
    from vllm.entrypoints.serve.engine.serving import BaseServing

    for model in ("chat", "alias", "legal", None, ""):
        assert checked(BaseServing, model) is None, "a tenant of all models"
    assert checked(BaseServing, "chat", "chat") is None and checked(BaseServing, None, "alias") is None
    assert checked(BaseServing, "legal", "legal") is None
    stock = checked(BaseServing, "nobody's")
    words = stock.error.message.replace("chat, alias", "legal")
    if "legal" not in words:  # vLLM lists the names since 0.32
        words += " Valid aliases: legal."
    for model in ("chat", "nobody's", "", "not loaded"):
        error = checked(BaseServing, model, "legal", "not loaded")
        assert error.error.message == words.replace("nobody's", model)
        assert error.error.model_dump(exclude={"message"}) == stock.error.model_dump(exclude={"message"})
    assert "None" in checked(BaseServing, None, "legal").error.message


def test_routes_that_pool_and_realtime_sessions_hide_models_too() -> None:
    from vllm.entrypoints.pooling.base.serving import PoolingBaseServing
    from vllm.entrypoints.serve.engine.serving import BaseServing
    from vllm.entrypoints.speech_to_text.realtime.connection import RealtimeConnection
    from vllm.exceptions import VLLMNotFoundError

    class Pooling(PoolingBaseServing):
        def __call__(self, *_: Any, **__: Any) -> Any: ...

        _build_response = get_io_processor = __call__

    assert checked(Pooling, "legal", "legal") is None
    with pytest.raises(VLLMNotFoundError, match="The model `chat` does not exist."):
        checked(Pooling, "chat", "legal")
    connection = RealtimeConnection.__new__(RealtimeConnection)
    connection.serving = BaseServing.__new__(BaseServing)  # type: ignore[assignment]
    connection.serving.models = Models()  # type: ignore[assignment]
    token = context.key_tenant.set(KeyTenant("a", models=frozenset({"alias"})))
    try:
        assert connection._check_model("alias") is None
        error = connection._check_model("chat")
        assert error is not None and error.error.code == 404
    finally:
        context.key_tenant.reset(token)


def test_a_tenant_lists_its_own_models() -> None:
    from vllm.entrypoints.openai.models.serving import OpenAIModelRegistry, OpenAIServingModels

    serving = OpenAIServingModels.__new__(OpenAIServingModels)
    serving.base_model_paths = list(Models.base_model_paths)  # type: ignore[arg-type]
    serving.lora_requests = dict(Models.lora_requests)  # type: ignore[arg-type]
    serving.registry = OpenAIModelRegistry(SimpleNamespace(max_model_len=1), serving.base_model_paths)  # type: ignore[arg-type]

    def listed(tenant: KeyTenant | None) -> list[str]:
        token = context.key_tenant.set(tenant)
        try:
            return [card.id for card in bounded.run(serving.show_available_models()).data]
        finally:
            context.key_tenant.reset(token)

    assert listed(None) == listed(KeyTenant("all")) == ["chat", "alias", "legal"]
    assert listed(KeyTenant("a", models=frozenset({"legal", "other"}))) == ["legal"]
    assert listed(KeyTenant("monitoring", models=frozenset())) == []
