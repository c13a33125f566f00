"""What the Redis server does in one step for a consumer of streams."""

# A lease says whose stream it is. KEYS: set of consumers, then a lease for each stream. ARGV: our token,
# milliseconds after which a consumer counts as dead. Answers the places, from 1, of the streams we are to
# read: no more than an even share; what we hold beyond it stays ours until it is released. A full server
# keeps leases as well.
ASSIGN = """#!lua flags=allow-oom
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
local share = math.ceil((#KEYS - 1) / redis.call('ZCARD', KEYS[1]))
local ours, free = {}, {}
for at = 2, #KEYS do
  local owner = redis.call('GET', KEYS[at])
  if owner == ARGV[1] then
    redis.call('PEXPIRE', KEYS[at], ARGV[2])
    if #ours < share then ours[#ours + 1] = at - 1 end
  elseif not owner then
    free[#free + 1] = at
  end
end
for _, at in ipairs(free) do
  if #ours == share then break end
  redis.call('SET', KEYS[at], ARGV[1], 'PX', ARGV[2])
  ours[#ours + 1] = at - 1
end
return ours
"""

# KEYS: lease. ARGV: our token.
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

# KEYS: stream, lease. ARGV: our token, its milliseconds, group, consumer, most entries, 1 where some may have
# been read before, most bytes. Answers what there is: 'lost'; 'entries', them, the ids of those that were
# removed, 1 where more were read than the bytes allow, which are to be read again; 'none', the last id of the
# stream. A consumer that lost its lease while it was paused reads nothing.
READ = """
local function answer(entries, removed)
  local kept, room = {}, tonumber(ARGV[7])
  for at, entry in ipairs(entries) do
    for _, part in ipairs(entry[2]) do room = room - #part end
    if room < 0 and at > 1 then return {'entries', kept, removed, 1} end
    kept[at] = entry
  end
  return {'entries', kept, removed, 0}
end
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return {'lost'} end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
if ARGV[6] == '1' then
  local cursor = '0-0'
  repeat
    local found = redis.call('XAUTOCLAIM', KEYS[1], ARGV[3], ARGV[4], 0, cursor, 'COUNT', ARGV[5])
    if #found[2] > 0 or #found[3] > 0 then return answer(found[2], found[3]) end
    cursor = found[1]
  until cursor == '0-0'
end
local found = redis.call('XREADGROUP', 'GROUP', ARGV[3], ARGV[4], 'COUNT', ARGV[5], 'STREAMS', KEYS[1], '>')
if found then return answer(found[1][2], {}) end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for at = 1, #info, 2 do
  if info[at] == 'last-generated-id' then return {'none', info[at + 1]} end
end
return {'none', '$'}
"""

# KEYS: dead letters, stream. ARGV: about how many to keep, group, id of the entry, then fields and values.
REJECT = """
local fields = {}
for at = 4, #ARGV do fields[#fields + 1] = ARGV[at] end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(fields))
return redis.call('XACK', KEYS[2], ARGV[2], ARGV[3])
"""

# KEYS: stream. ARGV: group, 0 or $. Answers entries that were read and not acknowledged, and not read (-1
# where the server cannot tell); the stream's length; milliseconds since the oldest of either; entries removed
# unread. A group that is not there will begin where ARGV[2] says: 0 or $.
LAG = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {0, 0, 0, 0, 0} end
local function named(flat)
  local found = {}
  for at = 1, #flat, 2 do found[flat[at]] = flat[at + 1] end
  return found
end
local group
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local one = named(flat)
  if one['name'] == ARGV[1] then group = one end
end
local stream = named(redis.call('XINFO', 'STREAM', KEYS[1]))
if not group then
  if ARGV[2] == '$' then return {0, 0, 0, 0, 0} end
  group = {['pending'] = 0, ['last-delivered-id'] = '0-0', ['lag'] = stream['length']}
end
local oldest
if group['pending'] > 0 then
  oldest = redis.call('XPENDING', KEYS[1], ARGV[1])[2]
else
  local next = redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+', 'COUNT', 1)[1]
  oldest = next and next[1]
end
local age = 0
if oldest then
  local time = redis.call('TIME')
  age = math.max(0, time[1] * 1000 + math.floor(time[2] / 1000) - string.match(oldest, '^%d+'))
end
local gone = 0
if group['entries-read'] then
  gone = math.max(0, stream['entries-added'] - group['entries-read'] - stream['length'])
end
local unread = group['lag'] or -1
if group['last-delivered-id'] == stream['last-generated-id'] then unread = gone end
return {group['pending'], unread, stream['length'], age, gone}
"""

# KEYS: stream. ARGV: group, our consumer, milliseconds. Forgets consumers that hold nothing and were not
# heard of for so long: hosts come and go, and their names would stay.
TIDY = """
local gone = 0
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local one = {}
  for at = 1, #flat, 2 do one[flat[at]] = flat[at + 1] end
  if one['name'] ~= ARGV[2] and one['pending'] == 0 and one['idle'] > tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], one['name'])
    gone = gone + 1
  end
end
return gone
"""
