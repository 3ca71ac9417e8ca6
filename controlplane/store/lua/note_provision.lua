-- A: lineage, ok, error, retry_after_s. Returns the lineage.
local lineage, raw = need('lineages', A.lineage, 'lineage')
if A.ok then
  if lineage.provision_failures == 0 then return raw end
  lineage.provision_failures = 0
  if lineage.failures == 0 then
    lineage.next_attempt_at, lineage.last_error, lineage.last_error_code = 0, nil, nil
  end
else
  lineage.provision_failures = lineage.provision_failures + 1
  lineage.next_attempt_at = now + A.retry_after_s
  lineage.last_error, lineage.last_error_code = A.error, 'provision_failed'
  emit('lineage.provision_failed', A.lineage, string.match(A.lineage, '^[^/]*'), 'worker', A.error,
    {failures = tostring(lineage.provision_failures)})
end
wake()
return save_lineage(lineage)
