/*
 * Holds of one destination: who folds reports, who probes, what lifts. README.md says what is
 * modelled and what is not; ./check runs it. Names as in sql/functions; a step of a process is
 * what PostgreSQL does as one. FAULT_... plants a fault that the checker must find.
 *
 * Tokens grow, so runs have an end: CLAIMS claims in all.
 */

#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef CLAIMERS
#define CLAIMERS 2
#endif
#ifndef CLAIMS
#define CLAIMS 4
#endif
#ifndef ACTS /* calls of hold() and lift() */
#define ACTS 1
#endif
#define REPORTS 3 /* that nobody has folded yet: a settle waits for a place, which none does in truth */
#define HOLD_AFTER 2

mtype = { pending, claimed };      /* messages */
mtype = { well, failing, held, recovering }; /* the destination */
mtype = { none, up, down };        /* reports */

/* What is committed. All messages go to the one destination. */
mtype state[MESSAGES] = pending;
byte token[MESSAGES];
mtype dest = well;
byte score;
bool over;           /* held_until has passed */
byte probe_id;       /* the message + 1; 0: none */
byte probe_token;
byte lift_token;
mtype report[REPORTS] = none;
byte report_id[REPORTS], report_token[REPORTS];

byte last_token;     /* the sequence: not of any transaction */
byte claims;

/* Locks: 0, or the process whose transaction holds it. */
byte row_lock[MESSAGES];
byte fold_lock;

/* What the protocol does not know, to judge it by. */
byte holds;              /* how many holds have been committed */
byte born[MESSAGES];     /* the hold under which the claim of a message began; 0: none */
byte epoch;              /* how often the fold lock was taken */
byte made[MESSAGES];     /* the epoch in which the claim of a message was committed */
byte lifted;             /* the epoch of the last lift */
byte report_born[REPORTS], report_made[REPORTS];
byte reported, folded;   /* reports committed, and taken by a fold that was committed */
bool inv_16 = true, inv_16_stale = true, inv_16_lost = true;

#define is_out(id, t) ((id) > 0 && state[(id) - 1] == claimed && token[(id) - 1] == (t))

#define INV_16(x) inv_16 = (x); assert(inv_16)
#define INV_16_STALE(x) inv_16_stale = (x); assert(inv_16_stale)
#define INV_16_LOST(x) inv_16_lost = (x); assert(inv_16_lost)

/* The state of the destination in a transaction that has the fold lock, before it commits. */
typedef view {
	mtype dest; byte score; bool over; byte probe_id; byte probe_token; byte lift_token; byte taken; byte lifts
};

inline read_destination(v) {
	v.dest = dest; v.score = score; v.over = over; v.probe_id = probe_id; v.probe_token = probe_token;
	v.lift_token = lift_token; v.taken = 0; v.lifts = 0
}

#ifdef FAULT_ANY_RESULT
#define counts(v, i) true
#elif defined(FAULT_PROBE_BY_ID)
#define counts(v, i) (report_id[i] == v.probe_id)
#else
#define counts(v, i) (report_id[i] == v.probe_id && report_token[i] == v.probe_token)
#endif

/* fold_reports(): each report that is committed, once. */
inline fold(v) {
	i = 0;
	do
	:: i < REPORTS && report[i] != none ->
		v.taken = v.taken | (1 << i);
		if
		:: v.dest == held && counts(v, i) ->
			INV_16_STALE(report_born[i] == holds);
			if
			:: report[i] == up -> v.dest = recovering; v.score = 0; v.over = false; v.probe_id = 0; v.probe_token = 0;
				last_token++; v.lift_token = last_token; v.lifts = 1
			:: else -> v.over = false; v.probe_id = 0; v.probe_token = 0 /* held again, for longer */
			fi
#ifdef FAULT_NO_LIFT_TOKEN
		:: v.dest != held && report[i] == down ->
#else
		:: v.dest != held && report[i] == down && report_token[i] >= v.lift_token ->
#endif
			INV_16_STALE(v.lifts == 1 || report_made[i] >= lifted);
			v.score++;
			v.dest = (v.score >= HOLD_AFTER -> held : (v.dest == well -> failing : v.dest));
			v.lifts = (v.dest == held -> 0 : v.lifts)
		:: v.dest != held && report[i] == up -> v.score = 0; v.dest = well
		:: else
		fi;
		i++
	:: i < REPORTS && report[i] == none -> i++
	:: i == REPORTS -> break
	od;
	i = 0
}

inline commit_destination(v) {
	holds = holds + (dest != held && v.dest == held);
	lifted = (v.lifts -> epoch : lifted);
	dest = v.dest; score = v.score; over = v.over; probe_id = v.probe_id; probe_token = v.probe_token; lift_token = v.lift_token;
	i = 0;
	do
	:: i < REPORTS && ((v.taken >> i) & 1) ->
		folded = folded + (report[i] != none);
		report[i] = none; report_id[i] = 0; report_token[i] = 0; report_born[i] = 0; report_made[i] = 0;
		i++
	:: i < REPORTS && !((v.taken >> i) & 1) -> i++
	:: i == REPORTS -> break
	od;
	i = 0;
	/* A report is there until a fold that took it is committed, and is taken once. */
	do
	:: i < REPORTS -> v.taken = v.taken + (report[i] != none -> 16 : 0); i++
	:: else -> break
	od;
	INV_16_LOST(reported == folded + v.taken / 16);
	reported = reported - folded; folded = 0;
	i = 0
}

/* claim_fair(). */
proctype claimer() {
	view v;
	byte began, gate, m, i, picked, mine;
	bool folds;
end_idle:
	atomic { claims < CLAIMS -> claims++; began = (dest == held -> holds : 0) }

#ifdef FAULT_GATE_BEFORE_LOCK
	d_step { read_destination(v); gate = (v.dest == held && v.over && !is_out(v.probe_id, v.probe_token)) }
#endif
	if
	:: atomic { fold_lock == 0 -> folds = true;
#ifndef FAULT_NO_FOLD_LOCK
		fold_lock = _pid + 1;
#endif
		epoch++ }
	:: fold_lock != 0 -> folds = false /* a try-lock */
	fi;

#ifndef FAULT_GATE_BEFORE_LOCK
	d_step { /* a new statement */
		read_destination(v);
		if
		:: folds -> fold(v)
		:: else
		fi
	}
	/* Without the lock, what is committed; and no probe. */
	d_step {
		gate = (v.dest != held -> MESSAGES :
			(folds && v.over && !is_out(v.probe_id, v.probe_token) -> 1 : 0))
	}
#else
	gate = (v.dest != held -> MESSAGES : (folds && gate -> 1 : 0));
#endif

	/* The pick: any rows, as many as the gate lets through. (Row locks are claim.pml's matter.) */
	atomic {
		do
		:: m < MESSAGES && gate > 0 && state[m] == pending && row_lock[m] == 0 ->
			row_lock[m] = _pid + 1; picked = picked | (1 << m); gate--; m++
		:: m < MESSAGES -> m++
		:: m == MESSAGES -> break
		od;
		m = 0; gate = 0;
		if
		:: picked -> last_token++; mine = last_token
		:: else
		fi
	}
#ifdef FAULT_UNLOCK_BEFORE_COMMIT
	fold_lock = (fold_lock == _pid + 1 -> 0 : fold_lock);
#endif

	atomic {
		if
		:: true ->
			do
			:: m < MESSAGES && ((picked >> m) & 1) ->
				state[m] = claimed; token[m] = mine; born[m] = began; made[m] = epoch;
				if
				:: folds && v.dest == held -> v.probe_id = m + 1; v.probe_token = mine; born[m] = holds
				:: else
				fi;
				m++
			:: m < MESSAGES && !((picked >> m) & 1) -> m++
			:: m == MESSAGES -> break
			od;
			m = 0;
			if
			:: folds -> commit_destination(v)
			:: else
			fi;
			/* Of what claims took that began under this hold, one is out. */
			if
			:: dest == held ->
				do
				:: m < MESSAGES -> i = i + (state[m] == claimed && born[m] == holds); m++
				:: m == MESSAGES -> break
				od;
				INV_16(i <= 1);
				m = 0; i = 0
			:: else
			fi
		:: true /* rollback: as after a crash */
		fi;
		do
		:: m < MESSAGES -> row_lock[m] = (row_lock[m] == _pid + 1 -> 0 : row_lock[m]); m++
		:: m == MESSAGES -> break
		od;
		m = 0
	}
	atomic { /* locks are given back after the commit */
		fold_lock = (fold_lock == _pid + 1 -> 0 : fold_lock);
		d_step { picked = 0; mine = 0; folds = false; began = 0; v.dest = well; v.score = 0; v.over = false; v.probe_id = 0;
			v.probe_token = 0; v.lift_token = 0; v.taken = 0; v.lifts = 0 }
	}
	goto end_idle
}

/* complete(), fail_destination() and rescue(): a look at the destination, and later the commit. */
proctype settler(byte m) {
	byte t, i;
	mtype result, seen;
	bool probes;
end_idle:
	do
	:: atomic { state[m] == claimed -> t = token[m];
		if
		:: result = up
		:: result = down
		:: result = none /* rescued, released, cancelled and redriven, or failed by its own fault */
		fi }
	   d_step { seen = dest; probes = (probe_id == m + 1 && probe_token == t) }
	   if
	   :: result == up && (seen == well || seen == held && !probes) -> result = none
	   :: result == down && seen == held && !probes -> result = none
	   :: else
	   fi;
	   atomic {
		i = 0;
		do
		:: i < REPORTS && report[i] != none -> i++
		:: else -> break
		od;
		if
		:: state[m] == claimed && token[m] == t && (result == none || i < REPORTS) ->
			if
			:: result != none -> report[i] = result; report_id[i] = m + 1; report_token[i] = t;
				report_born[i] = born[m]; report_made[i] = made[m]; reported++
			:: else
			fi;
			state[m] = pending; token[m] = 0; born[m] = 0; made[m] = 0
		:: else /* lost, or rolled back */
		fi;
		t = 0; i = 0; probes = false; result = 0; seen = 0
	   }
	od
}

/* hold() and lift() wait for the fold lock. */
proctype operator() {
	view v;
	byte i;
	byte acts;
end_idle:
	do
	:: atomic { acts < ACTS && fold_lock == 0 -> fold_lock = _pid + 1; epoch++; acts++ }
	   d_step { read_destination(v);
		if
		:: v.dest == held -> v.dest = recovering; v.score = 0; v.over = false; v.probe_id = 0; v.probe_token = 0;
			last_token++; v.lift_token = last_token; v.lifts = 1
		:: else -> v.dest = held; v.score = 0; v.over = false; v.probe_id = 0; v.probe_token = 0
		fi }
	   atomic {
		if
		:: commit_destination(v)
		:: true
		fi;
		fold_lock = 0
	   }
	od
}

/* The time of a hold passes. */
active proctype clock() {
end_idle:
	do
	:: atomic { dest == held && !over -> over = true }
	od
}

init {
	byte n;
	atomic {
		do
		:: n < CLAIMERS -> run claimer(); n++
		:: else -> break
		od;
		n = 0;
		do
		:: n < MESSAGES -> run settler(n); n++
		:: else -> break
		od;
		run operator()
	}
}
