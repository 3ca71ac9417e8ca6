-- A: id. Returns the key; a revoked one keeps its time.
local record, raw = need('apikeys', A.id, 'api_key')
if record.revoked_at then return raw end
record.revoked_at = now
emit('apikey.revoked', record.id, record.tenant, 'api', '')
return save('apikeys', record.id, record)
