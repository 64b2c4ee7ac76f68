"""Envoy's messages of external processing, made of their descriptors when this module is imported.

``messages.binpb`` has the descriptors of ``protos``, which a test compiles again. No code is generated: it would only
run with a few versions of protobuf, and vLLM decides which one is installed. The descriptors stand in a pool of their
own, so that a process may load Envoy's complete messages as well.
"""

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD: Final = "Process"
DESCRIPTORS: Final = "messages.binpb"

_pool = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(files(__package__).joinpath(DESCRIPTORS).read_bytes()).file:
    _pool.AddSerializedFile(_file.SerializeToString())


def _message(name: str) -> Any:
    """Return the class of a message of the service."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"envoy.service.ext_proc.v3.{name}"))


ProcessingRequest: Final = _message("ProcessingRequest")
ProcessingResponse: Final = _message("ProcessingResponse")

FULL_DUPLEX: Final = 4
BUFFERED: Final = 2
"""Values of BodySendMode with which a body is seen whole before the server must be chosen."""
OVERWRITE: Final = 2
"""Value of HeaderAppendAction that replaces a header which a client sent."""
