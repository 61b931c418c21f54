delete from outbox.migration where version = 5;
