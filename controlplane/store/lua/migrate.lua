-- KEYS[1]: prefix. ARGV[1]: the version the step starts from. Returns the version afterwards.
-- The step and its new version number are one change, so it runs once however many processes open the store.
local PREFIX = KEYS[1]
local found = tonumber(redis.call('GET', PREFIX .. 'schema') or '0')
if found ~= tonumber(ARGV[1]) then return found end
do
  -- STEP
end
redis.call('SET', PREFIX .. 'schema', found + 1)
return found + 1
