-- ARGV[2]: the key.
local record = decode(ARGV[2])
need('tenants', record.tenant, 'tenant')
local known = load('apikeys', record.id)
if known and known.revoked_at then
  fail('conflict', 'api_key_revoked', 'API key ' .. record.id .. ' was revoked; a revoked key never works again.',
    'Make a new key.')
end
record.created_at = known and known.created_at or now
save('apikeys', record.id, record)
emit(known and 'apikey.updated' or 'apikey.created', record.id, record.tenant, 'api', '', {role = record.role})
return 1
