package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// Notice is something that people should hear of. It is a line of the log, whose field "event" is the Notice, and, with
// Config.EventsNamespace, a message of the outbox as well, on the task queue "fairclaim." and the Notice.
// docs/events.md lists the fields of each; they stay as they are.
type Notice string

const (
	NoticeFailed        Notice = "failed"         // a message has failed for good
	NoticeUnownedShards Notice = "unowned_shards" // no live node owns some shards: nothing is claimed from them
	NoticeViolation     Notice = "violation"      // an audit has found a guarantee violated
	NoticeShutOut       Notice = "shut_out"       // a session that is not claiming keeps claims from shards, or holds other locks

	// Of destinations.
	NoticeHeld   Notice = "held"    // nothing is claimed for one any more
	NoticeLifted Notice = "lifted"  // its hold has ended
	NoticeGaveUp Notice = "gave_up" // it has been held for hold_give_up, and is not tried any more
)

// Notices are all notices.
func Notices() []Notice {
	return []Notice{NoticeFailed, NoticeUnownedShards, NoticeViolation, NoticeShutOut, NoticeHeld, NoticeLifted, NoticeGaveUp}
}

// Bounds of notices, for one node.
const (
	noticeWindow = 10 * time.Second
	maxNotices   = 100  // in a window; of those left out the log tells how many
	maxQueued    = 1000 // notices that wait to be enqueued; what comes beyond that, while the database is away, is in the log alone
	maxAudited   = 20   // violations of an audit
	maxHolds     = 20   // holds of a survey that began, and as many that ended, and were given up
)

// notice is one notice.
type notice struct {
	name  Notice
	level slog.Level
	text  string
	of    string // the namespace of the message that it is about; empty: none

	logOnly bool // it becomes no message

	// key tells it from all others of its name: where it is noticed again, it is the same.
	key    string
	fields []any // for the log, in turn names and values
}

// notices are what the loop keeps of them.
type notices struct {
	from    int64 // clock time when the window began
	told    int   // in the window
	omitted int   // in the window
	queued  []driver.Message
	dropped int // were not queued, and the log has not said so
}

// notify tells of something, within bounds.
func (l *loop) notify(n notice) {
	l.closeNotices()
	if l.notices.told >= maxNotices {
		l.notices.omitted++
		return
	}
	l.notices.told++
	l.tell(n)
}

// closeNotices ends the window where it is over, and tells how many notices it has left out.
func (l *loop) closeNotices() {
	now := l.clock()
	if l.notices.from > 0 && now-l.notices.from < int64(noticeWindow) {
		return
	}
	omitted := l.notices.omitted
	l.notices.from, l.notices.told, l.notices.omitted = now, 0, 0
	if omitted > 0 {
		l.log.Warn("more events than are told one by one", "omitted", omitted)
	}
}

// tell writes a notice to the log, and has it enqueued.
func (l *loop) tell(n notice) {
	l.log.Log(context.Background(), n.level, n.text, append([]any{"event", string(n.name)}, n.fields...)...)
	// A notice about a message that is a notice itself becomes none: else one that nobody takes would make the next one.
	if l.config.EventsNamespace == "" || n.logOnly || n.of == l.config.EventsNamespace {
		return
	}
	if len(l.notices.queued) >= maxQueued {
		l.notices.dropped++
		return
	}
	payload := map[string]any{"event": string(n.name), "node": l.config.Node}
	for i := 0; i+1 < len(n.fields); i += 2 {
		payload[n.fields[i].(string)] = n.fields[i+1]
	}
	text, err := json.Marshal(payload)
	if err != nil { // cannot be: texts and numbers
		panic(err)
	}
	hash := sha256.Sum256([]byte(n.key))
	l.notices.queued = append(l.notices.queued, driver.Message{
		Namespace: l.config.EventsNamespace, TaskQueue: noticeQueue(n.name), Payload: text,
		DispatchKey: short(l.config.EventsNamespace) + "/fairclaim/" + string(n.name) + "/" + hex.EncodeToString(hash[:16]),
	})
	l.duties.events.off = false
}

// noticeQueue is the task queue of a notice's messages.
func noticeQueue(n Notice) string { return "fairclaim." + string(n) }

// short is a namespace as a dispatch key begins with it, which has room for 512 bytes.
func short(namespace string) string {
	const most = 400
	if len(namespace) <= most {
		return namespace
	}
	return strings.ToValidUTF8(namespace[:most], "")
}

// enqueueNotices is a duty: it enqueues what is queued. A batch that the outbox refuses is dropped: it would refuse it again.
func (l *loop) enqueueNotices(ctx context.Context) error {
	batch := l.notices.queued
	if len(batch) == 0 {
		l.duties.events.off = true
		return nil
	}
	_, err := driver.EnqueueBatch(ctx, l.db, batch)
	if err != nil && !errors.Is(err, driver.ErrBadArgument) && !errors.Is(err, driver.ErrKeyTaken) && !errors.Is(err, driver.ErrPayloadTooLarge) {
		return err
	}
	if l.notices.dropped > 0 {
		l.log.Warn("events were not enqueued, since too many waited for the database", "messages", l.notices.dropped)
	}
	l.notices.queued, l.notices.dropped = nil, 0
	l.duties.events.off = true
	return err
}

// failedNotice is of a message that has failed for good. A claim fails once: so the claim is the key.
func failedNotice(it *item) notice {
	return notice{
		name: NoticeFailed, level: slog.LevelWarn, text: "a message has failed for good", of: it.Namespace,
		key: fmt.Sprint(it.ID, " ", it.ClaimToken),
		fields: []any{
			"id", it.ID, "namespace", it.Namespace, "task_queue", it.TaskQueue, "dispatch_key", it.DispatchKey,
			"attempt", it.Attempt, "error", driver.CleanReason(it.reason),
		},
	}
}

// rescuedNotice is of messages that have failed because their leases expired for the last time: a
// rescue tells how many, and not whose: they may be notices themselves.
func rescuedNotice(messages int) notice {
	return notice{
		name: NoticeFailed, level: slog.LevelWarn, text: "messages have failed for good: their leases expired for the last time",
		logOnly: true, fields: []any{"messages", messages},
	}
}

func (l *loop) unownedNotice(shards int) notice {
	return notice{
		name: NoticeUnownedShards, level: slog.LevelWarn, text: "no live node owns some shards: nothing is claimed from them",
		key: fmt.Sprint(l.config.Node, " ", l.process, " ", l.clock()), fields: []any{"shards", shards},
	}
}

// violationNotice has one key however often an audit finds the same.
func violationNotice(v driver.Violation) notice {
	return notice{
		name: NoticeViolation, level: slog.LevelError, text: "an audit has found a guarantee violated",
		key:    v.Guarantee + "\x00" + v.Subject + "\x00" + v.Detail,
		fields: []any{"guarantee", v.Guarantee, "subject", v.Subject, "detail", v.Detail, "hint", v.Hint},
	}
}

// shutOutNotice has one key an hour for the same session.
func shutOutNotice(o driver.Obstacle, now time.Time) notice {
	text := "a session keeps claims from shards"
	if len(o.Shards) == 0 {
		text = "a session that is not claiming holds locks of nodes, heartbeats, cancels or destinations"
	}
	return notice{
		name: NoticeShutOut, level: slog.LevelWarn, text: text,
		key:    o.Session + "\x00" + o.Remedy + "\x00" + now.UTC().Format("2006-01-02T15"),
		fields: []any{"session", o.Session, "shards", len(o.Shards), "other_locks", o.Others, "remedy", o.Remedy},
	}
}

// holdNotice is of a destination that is held, lifted or given up; the namespace is empty for the route of
// all. Its key is the destination and when the hold began.
func holdNotice(e driver.HoldEvent) notice {
	since := e.Since.UTC().Format(time.RFC3339Nano)
	return notice{
		name: Notice(e.Event), level: holdLevel(Notice(e.Event)), of: e.Namespace, text: map[Notice]string{
			NoticeHeld:   "a destination is held: nothing is claimed for it",
			NoticeLifted: "a destination is held no longer",
			NoticeGaveUp: "a destination is not tried any more until somebody lifts its hold",
		}[Notice(e.Event)],
		// The route of all on which notices go is as the namespace of the notices.
		logOnly: e.Namespace == "" && strings.HasPrefix(e.TaskQueue, noticeQueue("")),
		key:     e.Namespace + "\x00" + e.TaskQueue + "\x00" + since,
		fields: []any{
			"namespace", e.Namespace, "task_queue", e.TaskQueue, "since", since, "at", e.At.UTC().Format(time.RFC3339Nano),
			"by", e.By, "reason", driver.CleanReason(e.Reason),
		},
	}
}

// holdsNotice is of so many more destinations, the first of which has this event.
func holdsNotice(first driver.HoldEvent, destinations int) notice {
	name := Notice(first.Event)
	return notice{
		name: name, level: holdLevel(name), key: fmt.Sprint("from ", first.ID), text: map[Notice]string{
			NoticeHeld:   "more destinations are held",
			NoticeLifted: "more destinations are held no longer",
			NoticeGaveUp: "more destinations are not tried any more until somebody lifts their holds",
		}[name],
		fields: []any{"destinations", destinations},
	}
}

func holdLevel(name Notice) slog.Level {
	if name == NoticeLifted {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// noticeHolds tells what became of holds: of each kind a few one by one, and how many more there are.
func (l *loop) noticeHolds(events []driver.HoldEvent) {
	told, more := map[Notice]int{}, map[Notice][]driver.HoldEvent{}
	for _, e := range events {
		if n := holdNotice(e); told[n.name] < maxHolds {
			told[n.name]++
			l.notify(n)
		} else {
			more[n.name] = append(more[n.name], e)
		}
	}
	for _, name := range []Notice{NoticeHeld, NoticeLifted, NoticeGaveUp} {
		if len(more[name]) == 0 {
			continue
		}
		n := holdsNotice(more[name][0], len(more[name]))
		n.logOnly = !slices.ContainsFunc(more[name], func(e driver.HoldEvent) bool {
			one := holdNotice(e)
			return !one.logOnly && one.of != l.config.EventsNamespace
		})
		l.notify(n)
	}
}

// noticeSurvey tells of what a survey has found: shards that have had no owner in two surveys in a row (at a start, or when a
// node dies, they have none for a moment), at once, when there are more, and every now and then.
func (l *loop) noticeSurvey(s *Survey) {
	last := &l.unowned
	now := l.clock()
	shards := s.Outbox.Unowned
	if shards > 0 && last.seen > 0 && (shards > last.told || now-last.at >= int64(surveyLogEvery)) {
		last.told, last.at = shards, now
		l.notify(l.unownedNotice(shards))
	}
	if last.seen = shards; shards < last.told {
		last.told = shards
	}
	if s.Audit != nil && s.Audit.At.After(l.auditTold) {
		l.auditTold = s.Audit.At
		for i, v := range s.Audit.Violations {
			if i == maxAudited {
				l.log.Error("an audit has found more violations: sweep check lists them", "more", len(s.Audit.Violations)-i)
				break
			}
			l.notify(violationNotice(v))
		}
	}
}

// unowned is what the loop keeps of shards without an owner.
type unowned struct {
	seen, told int   // in the last survey; in the last notice
	at         int64 // clock time of the last notice
}
