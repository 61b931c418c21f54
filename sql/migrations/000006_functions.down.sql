delete from outbox.migration where version = 6;

-- >>> snapshot

-- <<< snapshot
