-- Without the prelude. KEYS[1]: prefix. ARGV[1]: schema version of a new state.
-- Returns {version found, 1 if the state was made here}; version 0: data without a version.
local found = redis.call('GET', KEYS[1] .. 'schema')
if found then return {tonumber(found), 0} end
for _, name in ipairs({'tenants', 'templates', 'pools', 'sandboxes', 'sessions'}) do
  if redis.call('EXISTS', KEYS[1] .. name) == 1 then return {0, 0} end
end
redis.call('SET', KEYS[1] .. 'schema', ARGV[1])
return {tonumber(ARGV[1]), 1}
