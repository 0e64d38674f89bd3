//! One stream through a file: the part that grows, and the distances at which parts begin.

use super::Span;
use core::time::Duration;

/// Errors of a start that a stride allows for, in granules: touches are known to one granule, and the distance to a part of one.
const ERROR_HALF_GRANULES: u64 = 3;
/// Parts nearer than this to each other, in granules, are one; so are those that lie no further apart than they are long, up to so much: what lies between costs less than half of what is
/// fetched, and where it is about as long as touches are exact, no distance can be told.
const NEAR_GRANULES: u64 = 2;
const NEAR_BYTES: u64 = 512 << 10;
/// A stream is left when so much was touched elsewhere, and twice what it has outstanding.
const LEFT_BYTES: u64 = 16 << 20;
/// How far a part is read ahead: what it grows by in so many looks, and at least so far. More would only stand in the way of what another stream is waiting for.
const PACES: u64 = 5;
/// No store that programs wait for is as fast as this, 2.5 GB/s; to ask for what is there costs a program that reads from memory a few hundredths of its time.
const QUICK_BYTES_PER_US: u64 = 2500;
const LEAST_WINDOW: u64 = 4 << 20;
/// How far behind its end a part's next touch is looked for, besides what was fetched.
const BEYOND: u64 = 512 << 10;
/// A stream that has proved nothing is looked at while no more than this was touched since.
const FRESH_BYTES: u64 = 512 << 10;

/// Where a stream is, and what it has proved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// The part: its first byte, the one behind its last, and by how much it grew forwards.
    start: u64,
    front: u64,
    grown: u64,
    /// What was touched of it without a gap, last.
    piece: u64,
    /// By how much it grew backwards: a large copy may begin at its end.
    back: u64,
    /// Up to here was asked for, where that is beyond the front; and from here on, where that is before the start.
    asked: u64,
    asked_from: u64,
    /// The first start of the stride, the distances since, and how long the parts before this one are: the longest of the last few.
    first: u64,
    count: u64,
    extent: u64,
    /// Starts beyond this part's that were asked for, with how many bytes each.
    asked_starts: u64,
    asked_each: u64,
    /// What it grew by since the last look, and by at most in the looks before, of which the last counts most.
    fresh: u64,
    pace: u64,
    /// Whether it grew faster than from any store: what it touches is in memory.
    is_quick: bool,
    /// The bytes that had been touched in the file when this stream was touched last.
    pub(super) touched_at: u64,
    /// Whether something was ever asked for.
    pub(super) has_asked: bool,
}

impl Stream {
    pub(super) const NONE: Stream = Stream {
        start: 0,
        front: 0,
        grown: 0,
        piece: 0,
        back: 0,
        asked: 0,
        asked_from: 0,
        first: 0,
        count: 0,
        extent: 0,
        asked_starts: 0,
        asked_each: 0,
        fresh: 0,
        pace: 0,
        is_quick: false,
        touched_at: 0,
        has_asked: false,
    };

    /// A part without a history: it may be the second one of a stride that began where the last part did.
    pub(super) const fn begin(span: Span, previous: Option<u64>, now: u64) -> Self {
        let (first, count) = match previous {
            Some(first) => (first, 1),
            None => (span.from, 0),
        };
        Stream {
            start: span.from,
            front: span.to,
            grown: span.len(),
            piece: span.len(),
            asked_from: span.from,
            first,
            count,
            fresh: span.len(),
            touched_at: now,
            ..Stream::NONE
        }
    }

    pub(super) const fn is_followed(&self) -> bool {
        self.touched_at > 0
    }

    /// Bytes asked for that haven't been touched.
    pub(super) const fn outstanding(&self) -> u64 {
        self.asked.saturating_sub(self.front)
            + self.start.saturating_sub(self.asked_from)
            + self.asked_starts * self.asked_each
    }

    /// How far the part's ends lie from these bytes, if they belong to it. What lies well within it was touched before, and is another pass.
    pub(super) const fn gap(&self, span: Span, granule: u64) -> Option<u64> {
        let gap = if span.from < self.start {
            self.start.saturating_sub(span.to)
        } else {
            span.from.abs_diff(self.front)
        };
        let near = if self.piece < NEAR_BYTES {
            self.piece
        } else {
            NEAR_BYTES
        };
        if gap <= NEAR_GRANULES * granule || gap <= near {
            Some(gap)
        } else {
            None
        }
    }

    /// The part has grown by these bytes. What had been asked for: of it, and in vain.
    pub(super) fn grow(&mut self, span: Span, now: u64) -> (u64, u64) {
        self.touched_at = now;
        self.fresh += span.len();
        let is_behind = span.from > self.front;
        self.piece = span.len() + if is_behind { 0 } else { self.piece };
        let before = self.front;
        self.front = self.front.max(span.to);
        let mut used = self.asked.min(self.front).saturating_sub(before);
        if span.from < self.start {
            // That proves nothing of what lies ahead.
            self.back += self.start - span.from;
            used += self.start.saturating_sub(self.asked_from.max(span.from));
            self.start = span.from;
            self.asked_from = self.asked_from.min(span.from);
        } else {
            self.grown += span.len();
        }
        let mut vain = 0;
        if self.count > 0 && self.grown >= self.stride().unsigned_abs() {
            // It has reached the next one: what lay apart was read by several threads.
            vain = self.asked_starts * self.asked_each;
            (self.count, self.asked_starts) = (0, 0);
        }
        (used, vain)
    }

    /// A look is over, so long after the one before: how fast the part grows.
    pub(super) fn looked(&mut self, elapsed: Duration) {
        let millionths = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.is_quick = self.fresh > millionths.saturating_mul(QUICK_BYTES_PER_US).max(LEAST_WINDOW);
        self.pace = self.fresh.max(self.pace - self.pace / 8);
        self.fresh = 0;
    }

    /// How far ahead is enough: what is touched in the next few looks.
    fn enough(&self, window: u64) -> u64 {
        window.min((PACES * self.pace).max(LEAST_WINDOW))
    }

    /// The part has reached the head of a stride: what it had asked for there is that one's.
    pub(super) fn settle(&mut self, next: &mut Stream) -> u64 {
        let used = self.asked.min(next.front).saturating_sub(self.front.max(next.start));
        if self.asked > self.front {
            next.asked = next.asked.max(self.asked);
            self.asked = self.front;
        }
        used
    }

    /// Takes over the part that lies right behind this one. What of it this one had asked for.
    pub(super) fn join(&mut self, next: &Stream) -> u64 {
        let before = self.front;
        if next.back > 0 {
            // Read backwards, in pieces that are each read forwards.
            self.back += next.back + (self.front - self.start);
            self.asked_from = self.asked_from.min(next.asked_from);
        }
        self.front = self.front.max(next.front);
        self.grown += next.grown;
        self.touched_at = self.touched_at.max(next.touched_at);
        let used = self.asked.min(self.front).saturating_sub(before);
        self.asked = self.asked.max(next.asked);
        used
    }

    /// Whether `next` begins where this part ends.
    pub(super) const fn reaches(&self, next: &Stream, granule: u64) -> bool {
        next.is_followed() && next.start > self.start && next.front > self.front && next.start <= self.front + granule
    }

    /// Whether it is a stride that is believed.
    pub(super) const fn is_stride(&self, proof: u64) -> bool {
        self.count >= proof
    }

    /// The mean distance of the starts. The last one alone is known to a granule only, which is too little to meet the tenth next.
    const fn stride(&self) -> i64 {
        if self.count == 0 {
            return 0;
        }
        (self.start as i64 - self.first as i64) / self.count as i64
    }

    /// How far a start is from where the stride expects one, and how many distances on, if it is one of its.
    pub(super) fn meets(&self, from: u64, granule: u64, proof: u64) -> Option<(u64, u64)> {
        let (stride, way) = (self.stride(), from as i64 - self.start as i64);
        let apart = stride.unsigned_abs();
        if apart <= NEAR_GRANULES * granule {
            return None;
        }
        let most = if self.count < proof { 1 } else { self.asked_starts + 1 };
        let count = (way + stride / 2).checked_div(stride).filter(|&count| count > 0)?;
        let error = (way - count * stride).unsigned_abs();
        let allowed = (granule * ERROR_HALF_GRANULES / 2).min(apart / 4);
        (count.unsigned_abs() <= most && error <= allowed).then_some((error, count.unsigned_abs()))
    }

    /// The part without the stride, if it is read on.
    pub(super) fn part(&self, proof: u64) -> Option<Stream> {
        let part = Stream {
            first: self.start,
            count: 0,
            extent: 0,
            asked_starts: 0,
            ..*self
        };
        (self.grown >= proof).then_some(part)
    }

    /// Goes on to the part that begins `count` distances further on. What was asked for: of it, and in vain, but for what `is_kept` as a part of its own.
    pub(super) fn step(&mut self, span: Span, count: u64, is_kept: bool, now: u64) -> (u64, u64) {
        let passed = self.asked_starts.min(count);
        let used = if self.asked_starts >= count { self.asked_each } else { 0 };
        let behind = if is_kept {
            0
        } else {
            self.asked.saturating_sub(self.front)
        };
        let vain = passed * self.asked_each - used + behind;
        *self = Stream {
            start: span.from,
            front: span.to,
            grown: span.len(),
            piece: span.len(),
            back: 0,
            // Of a long part only the beginning was asked for.
            asked: if used > 0 && self.extent > self.asked_each {
                span.from + self.asked_each
            } else {
                0
            },
            asked_from: span.from,
            count: self.count + count,
            extent: (self.front - self.start).max(self.extent - self.extent / 8),
            asked_starts: self.asked_starts - passed,
            fresh: self.fresh + span.len(),
            touched_at: now,
            ..*self
        };
        (used, vain)
    }

    /// Whether the program went elsewhere, with something outstanding here.
    pub(super) const fn is_left(&self, now: u64, window: u64) -> bool {
        let outstanding = self.outstanding();
        outstanding > 0 && now - self.touched_at > LEFT_BYTES + window + 2 * outstanding
    }

    /// Gives up what is outstanding: so much was in vain.
    pub(super) fn leave(&mut self) -> u64 {
        let vain = self.outstanding();
        (self.asked, self.asked_from, self.asked_starts) = (0, self.start, 0);
        (self.grown, self.back) = (0, 0);
        vain
    }

    /// The next part of the stride, if it is to be asked for.
    pub(super) fn ahead(&mut self, bytes: u64, proof: u64, window: u64, granule: u64, room: u64) -> Option<Span> {
        let stride = self.stride();
        if self.is_quick || self.count < proof || self.extent >= stride.unsigned_abs() {
            return None;
        }
        let next = self.asked_starts + 1;
        if next > self.count.min((window / self.extent.max(1)).max(1)) {
            return None;
        }
        // A start is known to a granule, so the distance to a granule's part, and the nth next start to n of these.
        let margin = (granule * next / self.count).min(granule);
        let from = self.start.checked_add_signed(stride.checked_mul(next as i64)?)?;
        let to = (from + self.extent.min(self.enough(window)) + margin).min(bytes);
        let span = Span {
            from: from.saturating_sub(margin),
            to,
        };
        if span.is_empty() || span.len() > room {
            return None;
        }
        (self.asked_starts, self.asked_each, self.has_asked) = (next, span.len(), true);
        Some(span)
    }

    /// What lies behind the part, if it is to be asked for.
    pub(super) fn on(&mut self, bytes: u64, proof: u64, window: u64, room: u64) -> Option<Span> {
        // A part of a stride is as long as the others were, unless it goes on; of a long one only the beginning was asked for.
        let is_known = self.count >= super::PROOF_STRIDES && self.grown < self.extent && self.extent > self.asked_each;
        let is_usual = self.count >= super::PROOF_STRIDES && self.grown <= 2 * self.extent;
        if self.is_quick || !is_known && (self.grown < proof || is_usual) {
            return None;
        }
        let reach = if is_known { self.extent - self.grown } else { self.grown };
        let window = self.enough(window).min(reach);
        let (from, to) = (self.asked.max(self.front), (self.front + window).min(bytes));
        let wanted = to.saturating_sub(from);
        if wanted == 0 || (wanted < super::LEAST_ASK.min(window / 4) && to < bytes) {
            return None;
        }
        let to = from + wanted.min(room);
        (self.asked, self.has_asked) = (to, true);
        Some(Span { from, to })
    }

    /// What lies before the part, if it is to be asked for: down to `least`, where another part ends.
    pub(super) fn back(&mut self, least: u64, proof: u64, window: u64, room: u64) -> Option<Span> {
        if self.is_quick || self.back < proof {
            return None;
        }
        let window = self.enough(window).min(self.back);
        let (from, to) = (
            self.start.saturating_sub(window).max(least),
            self.asked_from.min(self.start),
        );
        let wanted = to.saturating_sub(from);
        if wanted == 0 || (wanted < super::LEAST_ASK.min(window / 4) && from > least) {
            return None;
        }
        let from = to - wanted.min(room);
        (self.asked_from, self.has_asked) = (from, true);
        Some(Span { from, to })
    }

    /// Where the part ends, if that is before `place`.
    pub(super) fn ends_before(&self, place: u64) -> Option<u64> {
        (self.is_followed() && self.front <= place).then_some(self.front)
    }

    /// Where the part begins.
    pub(super) const fn begins(&self) -> u64 {
        self.start
    }

    /// Whether it is worth a look.
    pub(super) const fn is_watched(&self, now: u64, proof: u64) -> bool {
        self.is_followed() && (now - self.touched_at <= FRESH_BYTES || self.outstanding() > 0 || self.count >= proof)
    }

    /// Where the part may grow, and where the next ones may begin.
    pub(super) fn watched(&self, granule: u64, window: u64) -> [Span; 3] {
        let growth = Span {
            from: self.front.saturating_sub(granule),
            to: self.asked.max(self.front + self.grown.min(window)) + BEYOND,
        };
        let before = Span {
            from: self
                .asked_from
                .min(self.start.saturating_sub(self.back.min(window)))
                .saturating_sub(BEYOND),
            to: if self.back > 0 { self.start + granule } else { 0 },
        };
        let stride = self.stride();
        if self.count < 2 || stride.unsigned_abs() <= NEAR_GRANULES * granule {
            // One distance is anybody's guess: a look for each of those that are random would cost more than a stride that is found later.
            return [growth, before, Span::default()];
        }
        let at = |count: u64| self.start.saturating_add_signed(stride.saturating_mul(count as i64));
        let (one, last) = (at(1), at(self.asked_starts + 1));
        let around = ERROR_HALF_GRANULES * granule;
        let starts = Span {
            from: one.min(last).saturating_sub(around),
            to: one.max(last) + self.extent.max(self.front - self.start) + around,
        };
        [growth, before, starts]
    }
}
