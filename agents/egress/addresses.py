"""Which IP addresses count as the public internet. Pure.

``ipaddress.is_global`` alone is not enough: it accepts multicast, site-local and addresses that carry an
IPv4 address inside (NAT64, 6to4), behind which a private host may stand.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_RELAY_ANYCAST = IPv4Network("192.88.99.0/24")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """True only for unicast addresses of the internet; anything doubtful is not public."""
    if isinstance(address, IPv4Address):
        return (
            address.is_global and not address.is_multicast and not address.is_reserved and address not in _RELAY_ANYCAST
        )
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address.scope_id is None and address in _GLOBAL_UNICAST and address.is_global and address not in _SIX_TO_FOUR
