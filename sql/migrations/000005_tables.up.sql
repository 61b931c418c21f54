-- Tables and settings that the functions of the next migration use.

insert into outbox.migration (version) values (5);
