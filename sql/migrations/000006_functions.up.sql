-- >>> snapshot

-- <<< snapshot

insert into outbox.migration (version) values (6);
