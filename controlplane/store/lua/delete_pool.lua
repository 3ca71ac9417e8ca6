-- A: pool.
local pool = load('pools', A.pool)
if not pool or pool.deleting then return 0 end
pool.deleting, pool.updated_at = true, now
save('pools', pool.key, pool)
emit('pool.deleting', pool.key, pool.tenant, 'api', '')
for _, id in ipairs(redis.call('ZRANGE', key('waiters', A.pool), 0, -1)) do
  local session = load('sessions', id)
  if session and session.state == 'waiting' then
    end_session(session, 'pool_deleted', 'Pool ' .. A.pool .. ' was deleted.', 'api')
  end
end
for _, id in ipairs(redis.call('SMEMBERS', key('pool_sandboxes', A.pool))) do
  local sandbox = load('sandboxes', id)
  if sandbox and SANDBOX[sandbox.state .. ' drain'] then move_sandbox(sandbox, 'drain', 'api', 'pool_deleted') end
end
wake()
return 1
