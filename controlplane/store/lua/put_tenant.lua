-- ARGV[2]: the tenant.
local tenant = decode(ARGV[2])
local known = load('tenants', tenant.id)
tenant.created_at = known and known.created_at or now
save('tenants', tenant.id, tenant)
emit(known and 'tenant.updated' or 'tenant.created', tenant.id, tenant.id, 'api', '',
  {max_sessions = tostring(tenant.max_sessions)})
return 1
