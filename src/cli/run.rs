//! The event loop of the full-screen interface. It blocks until a key, a notice, a signal or a finished job arrives or
//! a scheduled time is reached, and draws at most one frame per 16 ms, per 33 ms while only text arrives. Every way out
//! restores the terminal.

use std::io;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, never, select, unbounded};
use crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use signal_hook::consts::{SIGCONT, SIGINT, SIGTSTP};

use super::announce::Announcer;
use super::failure::RUNTIME_ENDED;
use super::input::{Input, start_input, typed_ahead};
use super::jobs::start_jobs;
use super::out;
use super::panic::install;
use super::signals::{ends, left_to_children, suspend, watch_signals, watch_terminal};
use super::term::{self, Guard, Leave, Modes};
use super::themes::Themes;
use super::{Exit, clipboard, config_cmd, jobs};
use crate::core::sanitize::Clean;
use crate::runtime::protocol::{Notice, Request};
use crate::tui::options::{Glyphs, ThemeName, UiConfig};
use crate::tui::palette::Palette;
use crate::tui::tour::Tour;
use crate::tui::view::clusters::Clusters;
use crate::tui::view::draw;
use crate::tui::{App, Effect, Event, Phase, Redraw, status, update};

/// The runtime as the interface sees it. Both channels should be unbounded: the runtime must never wait for a terminal.
pub struct RuntimeHandle {
    pub requests: Sender<Request>,
    pub notices: Receiver<Notice>,
}

const FRAME: Duration = Duration::from_millis(16);
const STREAM_FRAME: Duration = Duration::from_millis(33);
const RESIZE: Duration = Duration::from_millis(50);
const ASK: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
struct End {
    exit: Exit,
    farewell: Option<String>,
}

struct Loop {
    app: App,
    runtime: RuntimeHandle,
    guard: Guard,
    modes: Modes,
    /// Never dropped: dropping would write to a terminal that may be gone. The guard shows the cursor.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<io::Stdout>>>,
    clusters: Clusters,
    input: Input,
    signals: Receiver<i32>,
    jobs: Sender<Effect>,
    started: Instant,
    last_frame: Option<Instant>,
    wanted: Redraw,
    pending_frame: Option<Instant>,
    resize: Option<Instant>,
    dying: Option<(Exit, Instant)>,
    end: Option<End>,
    repaint: bool,
    announcer: Announcer,
}

/// Runs the interface until it ends, restores the terminal and prints the farewell. Returns where a tour is then.
pub fn run(config: UiConfig, runtime: RuntimeHandle, tour: Option<Tour>) -> io::Result<(Exit, Option<Tour>)> {
    let toured = tour.is_some();
    let size = crossterm::terminal::size()?;
    let guard = Guard::default();
    install(guard.clone(), config.state_dir.clone(), Some(std::thread::current().id()));
    let modes = Modes { alternate_screen: !config.inline, mouse: config.ui.mouse, kitty: false };
    // Before the terminal is changed: from here on a signal is an event, and every way out passes `leave`.
    let (signals_to, signals) = unbounded();
    watch_signals(signals_to.clone())?;
    let leave = Leave(guard.clone());
    guard.enter(modes)?;
    let (answers, typed) = term::ask(ASK);
    let mut config = config;
    if answers.kitty {
        guard.add_kitty()?;
    }
    if !config.fixed_glyphs && answers.wide_lines {
        config.glyphs = Glyphs::Ascii;
    }
    config.light = answers.light == Some(true);
    config.theme = Palette::built_in(ThemeName::Auto, config.light);
    let (theme, code_theme) = (config.settings.config.ui.theme.clone(), config.ui.code_theme.clone());
    watch_terminal(signals_to)?;
    let (events_to, events) = unbounded();
    for event in typed_ahead(&typed) {
        let _ = events_to.send(event);
    }
    let input = start_input(events_to.clone(), modes.mouse)?;
    let jobs = start_jobs(events_to, Themes::of(&config))?;
    let terminal = ManuallyDrop::new(Terminal::new(CrosstermBackend::new(out::screen()))?);
    let mut this = Loop {
        app: App::new(config, size.0, size.1),
        runtime,
        guard,
        modes: Modes { kitty: answers.kitty, ..modes },
        terminal,
        clusters: Clusters::default(),
        input,
        signals,
        jobs,
        started: Instant::now(),
        last_frame: None,
        wanted: Redraw::Now,
        pending_frame: None,
        resize: None,
        dying: None,
        end: None,
        repaint: true,
        announcer: Announcer::new(|name| std::env::var_os(name)),
    };
    (this.app.tour, this.app.toured) = (tour, toured);
    // An unreadable theme is reported in the transcript.
    this.perform(Effect::Theme(theme))?;
    if code_theme != "auto" {
        this.perform(Effect::CodeTheme(code_theme))?;
    }
    let end = match this.go(&events) {
        Ok(end) => end,
        // Most likely the terminal is gone.
        Err(_) => this.end_without_terminal(),
    };
    if toured {
        // The program may be started again in this process: two threads must not read one keyboard.
        this.input.park();
    }
    drop(leave);
    // The session of a tour is deleted with it, so the hint to resume it is left out.
    if let Some(text) = end.farewell.filter(|_| !toured || end.exit != Exit::Ok) {
        let _ = out::line(&Clean::text(&text));
    }
    Ok((end.exit, this.app.tour.take()))
}

impl Loop {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn go(&mut self, events: &Receiver<Event>) -> io::Result<End> {
        let (signals, no_notices) = (self.signals.clone(), never());
        let mut runtime_open = true;
        loop {
            self.frame()?;
            if let Some(end) = self.end.take() {
                return Ok(End { exit: self.dying.map_or(end.exit, |(exit, _)| exit), ..end });
            }
            let timeout = self.timeout();
            let notices = if runtime_open { self.runtime.notices.clone() } else { no_notices.clone() };
            select! {
                recv(events) -> event => if let Ok(event) = event { self.event(event)?; },
                recv(notices) -> notice => match notice {
                    Ok(notice) => self.event(Event::Notice(notice))?,
                    Err(_) => { runtime_open = false; self.runtime_lost(); }
                },
                recv(signals) -> signal => if let Ok(signal) = signal { self.signal(signal)?; },
                default(timeout) => {}
            }
            for _ in 0..256 {
                if let Ok(event) = events.try_recv() {
                    self.event(event)?;
                } else if let Ok(notice) = notices.try_recv() {
                    self.event(Event::Notice(notice))?;
                } else {
                    break;
                }
            }
            self.moments()?;
        }
    }

    fn timeout(&self) -> Duration {
        let now = Instant::now();
        let wait = |at: Instant| at.saturating_duration_since(now);
        let state = self.app.deadline().map(|ms| Duration::from_millis(ms.saturating_sub(self.now_ms()).max(1)));
        let frame = self.pending_frame.map(wait);
        let resize = self.resize.map(wait);
        let dying = self.dying.map(|(_, at)| wait(at));
        [state, frame, resize, dying].into_iter().flatten().min().unwrap_or(Duration::from_secs(365 * 86_400))
    }

    fn moments(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.resize.is_some_and(|at| at <= now) {
            self.resize = None;
            self.measure()?;
        }
        if self.app.deadline().is_some_and(|ms| ms <= self.now_ms()) {
            self.apply(Event::Tick)?;
        }
        if let Some((exit, at)) = self.dying
            && at <= now
        {
            self.end = Some(End { exit, farewell: None });
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> io::Result<()> {
        if let Event::Resize { .. } = event {
            // The size is read again: this one may predate a suspension.
            self.resize = Some(Instant::now() + RESIZE);
            return Ok(());
        }
        self.apply(event)
    }

    fn apply(&mut self, event: Event) -> io::Result<()> {
        let now = self.now_ms();
        for effect in update(&mut self.app, event, now) {
            self.perform(effect)?;
        }
        Ok(())
    }

    fn perform(&mut self, effect: Effect) -> io::Result<()> {
        let event = match effect {
            Effect::Copy(text) => {
                let config = &self.app.config;
                let place = clipboard::Place {
                    method: config.clipboard,
                    tmux: std::env::var_os("TMUX").is_some(),
                    tools: &clipboard::tools(|name| std::env::var_os(name)),
                    dir: config.state_dir.as_deref(),
                };
                Event::Copied(clipboard::copy(&mut out::screen(), &text, place))
            }
            Effect::FindPaths(paths) => Event::FoundPaths(jobs::existing(paths, self.app.config.home.as_deref())),
            Effect::Keep { key, value } => Event::Kept(config_cmd::keep(&self.app.config, key, &value)),
            Effect::Theme(name) => Event::Theme(Themes::of(&self.app.config).theme(&name)),
            Effect::Editor(text) => {
                let edited = self.outside_terminal(|| left_to_children(|| jobs::edit(&text)))?;
                let signals: Vec<i32> = self.signals.try_iter().collect();
                // The edited text comes first, as a signal that ends the program keeps what the input holds.
                self.apply(Event::Edited(edited))?;
                return signals.into_iter().try_for_each(|signal| self.signal(signal));
            }
            Effect::Suspend => self.outside_terminal(suspend)?.map_or_else(Event::NotSuspended, |()| Event::Resumed),
            job @ (Effect::ListPaths(_) | Effect::ListFiles(_) | Effect::CodeTheme(_) | Effect::Highlight { .. }) => {
                let _ = self.jobs.send(job);
                return Ok(());
            }
            Effect::Send(request) => {
                // A runtime that is gone is reported by its other channel.
                let _ = self.runtime.requests.send(request);
                return Ok(());
            }
            Effect::Repaint => {
                self.repaint = true;
                return self.measure();
            }
            Effect::Notify(text) => return self.announcer.notify(&mut out::screen(), &text),
            Effect::Exit { exit, farewell } => {
                self.end = Some(End { exit, farewell });
                return Ok(());
            }
        };
        self.apply(event)
    }

    fn outside_terminal<T>(&mut self, work: impl FnOnce() -> T) -> io::Result<T> {
        self.input.park();
        self.announcer.forget();
        self.guard.leave();
        let result = work();
        self.guard.enter(self.modes)?;
        self.input.unpark();
        self.repaint = true;
        self.measure()?;
        Ok(result)
    }

    fn measure(&mut self) -> io::Result<()> {
        let (width, height) = crossterm::terminal::size()?;
        self.apply(Event::Resize { width, height })
    }

    fn signal(&mut self, signal: i32) -> io::Result<()> {
        match signal {
            SIGTSTP => self.perform(Effect::Suspend),
            SIGCONT => {
                self.repaint = true;
                self.apply(Event::Resumed)
            }
            _ => {
                self.dying = Some(ends(signal));
                self.apply(if signal == SIGINT { Event::Interrupt } else { Event::Terminate })
            }
        }
    }

    /// Gives the runtime a second to save, including the input line.
    fn end_without_terminal(&mut self) -> End {
        let exit = self.dying.map_or(Exit::HANGUP, |d| d.0);
        let deadline = Instant::now() + Duration::from_secs(1);
        let now = self.now_ms();
        for effect in update(&mut self.app, Event::Terminate, now) {
            if let Effect::Send(request) = effect {
                // A runtime that is gone has closed the other channel, too.
                let _ = self.runtime.requests.send(request);
            }
        }
        while let Ok(notice) = self.runtime.notices.recv_deadline(deadline) {
            if matches!(notice, Notice::Bye { .. } | Notice::Fatal { .. }) {
                break;
            }
        }
        End { exit, farewell: None }
    }

    fn runtime_lost(&mut self) {
        if self.app.phase != Phase::Ended {
            let farewell = Some(format!("sala-chat: {RUNTIME_ENDED}"));
            self.end.get_or_insert(End { exit: Exit::Failure, farewell });
        }
    }

    fn frame(&mut self) -> io::Result<()> {
        let wanted = std::mem::take(&mut self.app.redraw).max(self.wanted);
        self.wanted = wanted;
        self.pending_frame = None;
        let distance = match wanted {
            Redraw::No if !self.repaint => return Ok(()),
            Redraw::Stream if !self.repaint => STREAM_FRAME,
            Redraw::No | Redraw::Stream | Redraw::Now => FRAME,
        };
        let due = self.last_frame.map_or_else(Instant::now, |at| at + distance);
        if due > Instant::now() {
            self.pending_frame = Some(due);
            return Ok(());
        }
        // The terminal is gone: nothing can be drawn, and trying may block.
        if matches!(self.dying, Some((Exit::HANGUP, _))) {
            return Ok(());
        }
        self.wanted = Redraw::No;
        self.apply(Event::Frame)?;
        if std::mem::take(&mut self.repaint) {
            // Not `clear`: that asks the terminal for its cursor, and the answer would go to the input thread.
            let size = self.terminal.size()?;
            self.terminal.resize(Rect::new(0, 0, size.width, size.height))?;
        }
        crossterm::queue!(out::screen(), BeginSynchronizedUpdate)?;
        let (app, clusters) = (&self.app, &mut self.clusters);
        self.terminal.draw(|frame| {
            draw(app, frame);
            clusters.clear_pieces(frame.buffer_mut());
        })?;
        crossterm::execute!(out::screen(), EndSynchronizedUpdate)?;
        self.announcer.show(&mut out::screen(), &status::title(&self.app))?;
        self.last_frame = Some(Instant::now());
        Ok(())
    }
}
