-- A: kind, subject, tenant, actor, reason, data. Returns the id.
return emit(A.kind, A.subject, A.tenant, A.actor, A.reason, A.data)
