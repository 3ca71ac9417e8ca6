-- A: id, lineage, template, tenant, ref, fence. ARGV[2]: the build without created_at, heartbeat_at.
-- Returns 1 if it is the live build of its lineage.
check_fence(A.fence)
if redis.call('HEXISTS', key('templates'), A.template) == 0 then
  fail('not_found', 'template_not_found', 'There is no template ' .. A.template .. '.')
end
local lineage = load('lineages', A.lineage) or {key = A.lineage, template = A.template, ref = A.ref,
  current_revision = 0, failures = 0, provision_failures = 0, next_attempt_at = 0}
if lineage.build == A.id then return 1 end
local live = lineage.build and load('builds', lineage.build)
if live and BUILD[live.state .. ' fail'] then return 0 end

lineage.build = A.id
save_lineage(lineage)
redis.call('HSET', key('builds'), A.id, stamp(ARGV[2], {created_at = now, heartbeat_at = now}))
redis.call('ZADD', key('builds_by_time'), now, A.id)
redis.call('ZADD', key('builds_by_time', A.template), now, A.id)

local surplus = redis.call('ZCARD', key('builds_by_time', A.template)) - CONFIG.keep_builds
if surplus > 0 then
  for _, id in ipairs(redis.call('ZRANGE', key('builds_by_time', A.template), 0, surplus - 1)) do
    local old = load('builds', id)
    if not old or not BUILD[old.state .. ' fail'] then
      redis.call('HDEL', key('builds'), id)
      redis.call('ZREM', key('builds_by_time'), id)
      redis.call('ZREM', key('builds_by_time', A.template), id)
    end
  end
end
emit('build.queued', A.id, A.tenant, 'scheduler', '', {lineage = A.lineage})
return 1
