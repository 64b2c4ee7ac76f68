"""HTTP clients for a server that the user names; commands and examples make theirs here and nowhere else.

A proxy of the environment (``HTTP_PROXY``, ``ALL_PROXY``) is never used for an address of this machine: it would see
the key of a server that it cannot reach anyway. Cookies are not kept, so that each request is like the first.
"""

import ipaddress
import socket
import urllib.request
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx

from sloserve.core.errors import ConfigError, shown

_PROXY_SCHEMES: Final = ("http", "https", "all")
"""What httpx reads of the environment: ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``ALL_PROXY``."""


def http_client(url: str, *, key: str | None = None, **settings: Any) -> httpx.Client:
    """Return a client that sends its requests to the server at ``url``.

    Args:
        url: Address of the server.
        key: Key to send as a bearer token; ``None`` sends none.
        **settings: Further arguments of ``httpx.Client``.

    Raises: ConfigError for an address, a key, a proxy or a certificate file that cannot be used.
    """
    made: httpx.Client = _made(httpx.Client, httpx.HTTPTransport, url, key, settings)
    return made


def async_http_client(url: str, *, key: str | None = None, **settings: Any) -> httpx.AsyncClient:
    """Return the asynchronous form of :func:`http_client`."""
    made: httpx.AsyncClient = _made(httpx.AsyncClient, httpx.AsyncHTTPTransport, url, key, settings)
    return made


def proxy_remark(client: httpx.Client | httpx.AsyncClient) -> str:
    """Return the part of an error message that names the proxy through which ``client`` asks; empty without one."""
    url = client.base_url
    # Only httpx knows its choice: it reads NO_PROXY in its own way, and has no public name for what it chose.
    if client._transport_for_url(url) is client._transport:
        return ""
    # httpx prefers the variable of the scheme.
    used = next((scheme for scheme in _schemes_with_proxy() if scheme in (url.scheme, "all")), "all")
    return f" through the proxy that {_variable(used)} names (NO_PROXY={url.host} goes past it)"


def host_of(url: str, flag: str = "--url") -> str:
    """Return the host in the address of a server.

    Args:
        url: Address of the server.
        flag: The flag of the command that gave ``url``, for the error.

    Raises: ConfigError for a text that is no such address.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"{flag}: {shown(url)} is not an http:// or https:// address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{flag}: {shown(url)} is not an http:// or https:// address, as in http://127.0.0.1:8000")
    return parsed.host


def _made(client: Any, transport: Any, url: str, key: str | None, settings: dict[str, Any]) -> Any:
    host = host_of(url)
    given = {"base_url": url, "headers": _headers(key), "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=()))}
    try:
        if "transport" not in settings and _goes_direct(host):
            limits = {"limits": settings["limits"]} if "limits" in settings else {}
            given["transport"] = transport(**limits)  # a client with a transport of its own uses no proxy
        return client(**given, **settings)
    except ImportError:  # httpx speaks to SOCKS proxies with another package, and raises this where it is missing
        names = " or ".join(map(_variable, _schemes_with_proxy()))
        remedy = f"run: pip install 'httpx[socks]', or unset {names}, or set NO_PROXY={host}"
        raise ConfigError(f"{names} names a SOCKS proxy, for which a package is missing; {remedy}") from None
    except OSError as error:
        remedy = "SSL_CERT_FILE and SSL_CERT_DIR must name certificates that can be read"
        raise ConfigError(f"cannot make an HTTP client for {url}: {error}; {remedy}") from None
    except (ValueError, httpx.InvalidURL) as error:
        raise _unusable_environment(url, host, error) from None


def _unusable_environment(url: str, host: str, error: Exception) -> ConfigError:
    """Return the error for a client that httpx cannot make. Values are not repeated: they may hold a password."""
    proxies = _schemes_with_proxy()
    wrong = [f"{_variable(scheme)} names no proxy that can be used" for scheme in proxies]
    if urllib.request.getproxies().get("no"):
        wrong.append("NO_PROXY has an entry that cannot be read (write an IPv6 address without brackets)")
    if not wrong:
        return ConfigError(f"cannot make an HTTP client for {url}: {error}")
    remedy = "".join(f"unset {_variable(scheme)}, or " for scheme in proxies) + f"set NO_PROXY={host}"
    return ConfigError(f"{', or '.join(wrong)} ({type(error).__name__}); {remedy}")


def _headers(key: str | None) -> dict[str, str]:
    if not key:
        return {}
    if not key.isascii() or not key.isprintable():
        raise ConfigError("the API key has characters that no HTTP header may carry, such as a line break; remove them")
    return {"authorization": f"Bearer {key}"}


def _goes_direct(host: str) -> bool:
    """Return whether ``host`` is this machine, or one that NO_PROXY names."""
    return _is_loopback(host) or bool(urllib.request.proxy_bypass(host))


def _is_loopback(host: str) -> bool:
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761, Sec. 6.3
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(name))  # short forms, such as 127.1
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any(one.is_loopback or one.is_unspecified for one in (address, mapped) if one is not None)


def _schemes_with_proxy() -> list[str]:
    """Return the schemes for which the environment names a proxy, of ``_PROXY_SCHEMES`` and in their order.

    httpx asks the same function, for which a name in small letters counts before the one in capitals, even if empty.
    """
    found = urllib.request.getproxies()
    return [scheme for scheme in _PROXY_SCHEMES if found.get(scheme)]


def _variable(scheme: str) -> str:
    return f"{scheme.upper()}_PROXY"
