/*
 * The claim protocol: who may claim, count, settle and take back, and what each sees.
 * README.md says what is modelled and what is not; ./check runs it.
 *
 * A step of a process is what PostgreSQL does as one: a statement's look at one
 * snapshot, one lock, a commit. Everything else may come between two steps.
 *
 * Names as in sql/functions. FAULT_... plants a fault that the checker must find.
 */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef SHARDS
#define SHARDS 2
#endif
#ifndef QUOTA
#define QUOTA 2
#endif
#ifndef CLAIMERS
#define CLAIMERS 2
#endif
#ifndef DELIVERIES /* of one message at a time: the one that counts, and stale ones */
#define DELIVERIES 2
#endif

mtype = { pending, claimed, settled };

/* What is committed. All messages are of one namespace; message m is on shard m % SHARDS. */
mtype state[MESSAGES] = pending; /* the table that the hot row stands in */
byte token[MESSAGES];            /* claim_token, of a claimed one */
bool lapsed[MESSAGES];           /* lease_until has passed, of a claimed one */

/* Locks: 0, or the process whose transaction holds it. */
byte row_lock[MESSAGES];
byte shard_lock[SHARDS]; /* advisory */
byte strict_lock;        /* the namespace's row */

/*
 * What the protocol does not know, to judge it by. A delivery is a claim's hand-over of
 * a message to a worker. It has a number that no other delivery of the message under way
 * has; only equality counts, so that numbers are used again and runs are endless.
 */
byte current[MESSAGES];                  /* the delivery that the claim at hand made; 0: not claimed */
byte entitled[MESSAGES];                 /* the delivery whose lease runs and who has not settled */
byte underway[MESSAGES];                 /* set of deliveries that a worker still has */
byte shown[MESSAGES * (DELIVERIES + 1)]; /* the token that a delivery shows when it settles */
bool inv_1 = true, inv_4 = true, inv_9 = true;

#define bit_of(n) (1 << (n))
#define has(set, n) (((set) >> (n)) & 1)
#define ceiling(shards) ((QUOTA * (shards) + SHARDS - 1) / SHARDS)
#define size(set) (has(set, 0) + has(set, 1) + has(set, 2)) /* of shards */
#define ALL_SHARDS (bit_of(SHARDS) - 1)
#define no_delivery_free(m) (underway[m] == bit_of(DELIVERIES + 1) - 2)
#ifdef FAULT_NO_ROW_LOCKS
#define due(m) (state[m] == pending && !no_delivery_free(m))
#else
#define due(m) (state[m] == pending && !no_delivery_free(m) && row_lock[m] == 0)
#endif

#define INV_1(x) inv_1 = (x); assert(inv_1)
#define INV_4(x) inv_4 = (x); assert(inv_4)
#define INV_9(x) inv_9 = (x); assert(inv_9)

/* count(*) from outbox.claimed on some shards, as one statement sees it. */
inline count_claimed(shards, n) {
	d_step {
		n = 0; m = 0;
		do
		:: m < MESSAGES -> n = n + (state[m] == claimed && has(shards, m % SHARDS)); m++
		:: else -> break
		od;
		m = 0
	}
}

inline unlock_shards() {
	s = 0;
	do
	:: s < SHARDS && shard_lock[s] == _pid + 1 -> shard_lock[s] = 0; s++
	:: s < SHARDS && shard_lock[s] != _pid + 1 -> s++
	:: s == SHARDS -> break
	od;
	s = 0
}

inline unlock_row() {
	row_lock[m] = (row_lock[m] == _pid + 1 -> 0 : row_lock[m])
}

inline end_claim(becomes) {
	state[m] = becomes; lapsed[m] = false; token[m] = 0; current[m] = 0
}

/* claim_fair() in a transaction of its own, again and again, each time on any shards. */
proctype claimer(byte node) {
	byte asked, held, counted, all, room, picked, m, s, d;
begin:
	/* Shards move: what a node believes to own may be anything, at any time. */
#ifdef FIXED
	asked = (node == 0 -> 1 : ALL_SHARDS - 1); /* disjoint */
#else
	atomic {
		do
		:: asked < ALL_SHARDS - 1 -> asked++
		:: asked++; break
		od
	}
#endif

#if defined(FAULT_COUNT_BEFORE_LOCKS) || defined(FAULT_SNAPSHOT_BEFORE_LOCKS)
	count_claimed(asked, counted);
	count_claimed(ALL_SHARDS, all);
#endif

	/* 2. Try-locks, one after the other. The node's own lock guards its place in the walk,
	 *    which decides nothing here: the guarantees must hold without it. */
	do
	:: atomic { s < SHARDS && has(asked, s) && shard_lock[s] == 0 ->
#ifndef FAULT_NO_SHARD_LOCKS
		shard_lock[s] = _pid + 1;
#endif
		held = held | bit_of(s); s++ }
	:: atomic { s < SHARDS && (!has(asked, s) || shard_lock[s] != 0) -> s++ }
	:: s == SHARDS -> break
	od;
	s = 0;
	if
	:: held == 0 -> goto end
	:: else
	fi;

	/* 3. The walk: a new statement, hence a new snapshot. */
#if !defined(FAULT_COUNT_BEFORE_LOCKS) && !defined(FAULT_SNAPSHOT_BEFORE_LOCKS)
	count_claimed(held, counted);
#endif
#ifdef FAULT_CEILING_OF_SHARDS_ASKED
	room = ceiling(size(asked));
#else
	room = ceiling(size(held));
#endif
	room = (room > counted -> room - counted : 0);
	counted = 0;

#ifdef STRICT
#if defined(FAULT_STRICT_COUNT_BEFORE_LOCK)
	count_claimed(ALL_SHARDS, all);
#endif
#ifndef FAULT_STRICT_NO_LOCK
	if
	:: atomic { strict_lock == 0 -> strict_lock = _pid + 1 }
	:: strict_lock != 0 -> goto end /* skip locked: the namespace is left out */
	fi;
#endif
#if !defined(FAULT_STRICT_COUNT_BEFORE_LOCK) && !defined(FAULT_SNAPSHOT_BEFORE_LOCKS)
	count_claimed(ALL_SHARDS, all); /* a statement of its own, after the lock */
#endif
	d_step {
		all = (QUOTA > all -> QUOTA - all : 0);
		room = (all < room -> all : room);
	}
#endif
	all = 0;

	/* 4. The pick: for update skip locked, any rows up to the headroom. Fairness, batch
	 *    and max_bytes choose among them; here each choice is tried. */
	do
	:: atomic { m < MESSAGES && room > 0 && has(held, m % SHARDS) && due(m) ->
#ifndef FAULT_NO_ROW_LOCKS
		row_lock[m] = _pid + 1;
#endif
		picked = picked | bit_of(m); room--; m++ }
	:: m < MESSAGES -> m++
	:: m == MESSAGES -> break
	od;
	m = 0;
	room = 0;

#ifdef FAULT_UNLOCK_BEFORE_COMMIT
	unlock_shards();
#endif

	/* 6. Commit, and all is seen at once; or rollback, as after a crash. */
	atomic {
		if
		:: picked -> picked = 0; /* rollback */
			do
			:: m < MESSAGES -> unlock_row(); m++
			:: else -> break
			od;
			m = 0
		:: true ->
			do
			:: m < MESSAGES && has(picked, m) ->
				INV_1(state[m] == pending && entitled[m] == 0);
#ifdef CLAIMS_ONLY
				state[m] = claimed;
#else
				d = 1;
				do
				:: has(underway[m], d) -> d++
				:: else -> break
				od;
				state[m] = claimed; lapsed[m] = false;
				current[m] = d; entitled[m] = d;
				underway[m] = underway[m] | bit_of(d);
#ifdef FAULT_TOKEN_OF_NODE
				token[m] = node + 1;
#else
				token[m] = d; /* nextval: none that a worker could still show */
#endif
				shown[m * (DELIVERIES + 1) + d] = token[m];
				d = 0;
#endif
				unlock_row();
				m++
			:: m < MESSAGES && !has(picked, m) -> m++
			:: m == MESSAGES -> break
			od;
			m = 0
		fi;
		if
		:: picked -> picked = 0;
			count_claimed(held, counted);
			INV_4(counted <= ceiling(size(held)));
			count_claimed(ALL_SHARDS, counted);
#ifdef STRICT
			INV_4(counted <= QUOTA);
#endif
#ifdef FIXED
			INV_4(counted <= QUOTA + CLAIMERS - 1);
#endif
			counted = 0
		:: else
		fi
	}

	/* Locks are given back after the commit, in any order. */
end:
	unlock_shards();
	if
	:: strict_lock == _pid + 1 -> strict_lock = 0
	:: else
	fi;
	d_step { asked = 0; held = 0; counted = 0; all = 0; room = 0 }
	goto begin
}

#ifndef CLAIMS_ONLY

/* A worker and its delivery: complete(), retry() or release(), extend(); or it dies. */
proctype worker(byte m; byte d) {
	bool mine;
#define matches_id (state[m] == claimed)
#ifdef FAULT_NO_TOKEN
#define matches matches_id
#else
#define matches (matches_id && token[m] == shown[m * (DELIVERIES + 1) + d])
#endif
	do
	:: atomic { has(underway[m], d) ->
		if
		:: goto gone /* kill -9 */
		:: true
		fi
	   }
	   /* By id and token; waits for who has locked the row, and looks again. */
	   if
#ifdef FAULT_TOKEN_CHECKED_UNLOCKED
	   :: atomic { matches -> mine = true }
#else
	   :: atomic { matches && row_lock[m] == 0 -> row_lock[m] = _pid + 1; mine = true }
#endif
	   :: atomic { !matches -> INV_9(current[m] != d); goto gone } /* lost, and rightly */
	   fi;
	   /* The rest of the transaction; it may be that of a consumer that shares the database. */
	   atomic {
#ifdef FAULT_TOKEN_CHECKED_UNLOCKED
		if
		:: !matches_id -> mine = false; goto gone
		:: else
		fi;
#endif
		if
		:: INV_9(current[m] == d);
			if
			:: end_claim(settled); entitled[m] = 0 /* complete, fail */
			:: end_claim(pending); entitled[m] = 0 /* retry, release */
			:: lapsed[m] = false; entitled[m] = d /* extend */
			fi
		:: true /* rollback */
		fi;
		unlock_row();
		mine = false;
		if
		:: goto gone
		:: true /* still at work; or the answer was lost, and it will ask again */
		fi
	   }
	   goto next;
gone:	   atomic { underway[m] = underway[m] & ~bit_of(d); shown[m * (DELIVERIES + 1) + d] = 0 }
next:	   skip
	od
}

/* rescue(): skips what is locked, and looks at the lease under the lock. */
proctype rescuer(byte m) {
	do
#ifdef FAULT_LEASE_READ_UNLOCKED
#define OWN_LOCK 0
	:: state[m] == claimed && lapsed[m] && row_lock[m] == 0 ->
#else
#define OWN_LOCK (_pid + 1)
	:: atomic { state[m] == claimed && lapsed[m] && row_lock[m] == 0 -> row_lock[m] = _pid + 1 }
#endif
	   atomic {
		if
		:: state[m] == claimed && row_lock[m] == OWN_LOCK -> end_claim(pending) /* it takes no lease away that runs */
		:: true /* rollback */
		fi;
		unlock_row()
	   }
	od
}

#endif

/* Time passes; an operator cancels, and redrives what is settled. */
proctype world(byte m) {
	do
#ifdef CLAIMS_ONLY
	:: atomic { state[m] == claimed -> state[m] = pending }
#else
	:: atomic { state[m] == claimed && !lapsed[m] -> lapsed[m] = true; entitled[m] = 0 }
	:: atomic { state[m] == settled -> state[m] = pending }
	:: atomic { state[m] != settled && row_lock[m] == 0 -> row_lock[m] = _pid + 1 } /* cancel() */
	   atomic { end_claim(settled); entitled[m] = 0; unlock_row() }
#endif
	od
}

init {
	byte n, d;
	atomic {
		do
		:: n < CLAIMERS -> run claimer(n); n++
		:: else -> break
		od;
		n = 0;
		do
		:: n < MESSAGES -> run world(n);
#ifndef CLAIMS_ONLY
			run rescuer(n);
			d = 1;
			do
			:: d <= DELIVERIES -> run worker(n, d); d++
			:: else -> break
			od;
#endif
			n++
		:: else -> break
		od
	}
}
