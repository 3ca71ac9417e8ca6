"""Sessions: from a request to a bound sandbox, and what a session may do with it.

Belongs here: attach (resolve, claim, bind, wait), the lease, ending, and the way to a session's commands
and files. Does not belong here: making sandboxes (provisioning), who calls (tenancy), HTTP (api). Called by
the API. One atomic call of the store decides a claim; nothing here holds state between requests.
"""
