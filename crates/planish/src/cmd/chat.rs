//! `planish chat`: a conversation in a terminal or through a pipe, each turn going on from the cache of those before.

use std::io::{IsTerminal, stdin};

use anyhow::{Context, Result};
use clap::Args;
use planish_engine::generate::{Ended, Settings};
use planish_engine::text::Tokenizer;
use planish_engine::text::chat::{ChatTemplate, Message, Then};
use planish_tune::counted;
use serde_json::json;

use super::input::{Input, Lines, Typed};
use super::sampling::Sampling;
use crate::runner::{Opened, Runner};
use crate::session::SessionArgs;
use crate::ui::Ui;
use crate::{Outcome, interrupt, presets, report};

/// Talk with a model; /exit or the end of the input ends it, Ctrl-C stops an answer
#[derive(Args)]
pub struct ChatArgs {
    /// A preset, a cached model, OWNER/REPO[:FILE], or the path of a GGUF file
    #[arg(default_value = presets::DEFAULT)]
    model: String,
    /// What the model is told before the first message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    session: SessionArgs,
}

/// Reads messages line by line and answers each on standard output.
pub fn run(args: &ChatArgs, ui: Ui) -> Result<Outcome> {
    let opened = Opened::open(&args.model, &args.session, ui)?;
    let template = opened.file().chat()?;
    let settings = args.sampling.settings();
    let mut conversation = Conversation {
        runner: opened.runner(&settings, ui)?,
        tokenizer: &opened.file().tokenizer,
        template,
        settings,
        messages: args.system.iter().map(|text| Message::new("system", text.as_str())).collect(),
        fed: Vec::new(),
    };
    let on_terminal = stdin().is_terminal();
    if on_terminal {
        ui.note("write a message; /exit leaves, /clear forgets the conversation, Ctrl-C stops an answer");
    }
    let mut outcome = Outcome::Done;
    let mut lines = Lines::of_stdin();
    let mut leaving = false;
    loop {
        // During an answer the first Ctrl-C stops it and the second leaves. While a message is awaited, on a terminal the
        // first one drops the line, because it may have been meant for an answer that had just ended.
        if on_terminal {
            interrupt::install();
            crate::ui::prompt("> ");
        } else {
            interrupt::uninstall();
        }
        let Some(Typed { input, after_interrupt }) = lines.wait() else {
            if std::mem::replace(&mut leaving, true) {
                interrupt::check()?;
            }
            crate::ui::say("\nCtrl-C again leaves");
            continue;
        };
        leaving = false;
        // A Ctrl-C after the line is for its answer and must not be forgotten.
        if after_interrupt || !on_terminal {
            interrupt::install();
        }
        match input.context("cannot read from standard input")? {
            Input::End => return Ok(outcome),
            Input::Refused(why) => {
                crate::ui::say(&format!("the message {why}; send another"));
                outcome = Outcome::No;
            }
            Input::Line(line) => match line.trim() {
                "" => {}
                "/exit" | "/quit" => return Ok(outcome),
                "/clear" => conversation.clear(),
                message => {
                    if conversation.turn(message, ui)? == Outcome::No {
                        outcome = Outcome::No;
                    }
                }
            },
        }
    }
}

/// The messages so far, and the ids of them that the decoder's cache holds.
struct Conversation<'a> {
    runner: Runner<'a>,
    tokenizer: &'a Tokenizer,
    template: ChatTemplate,
    settings: Settings,
    messages: Vec<Message>,
    fed: Vec<u32>,
}

impl Conversation<'_> {
    /// Forgets all but what the system says.
    fn clear(&mut self) {
        self.messages.retain(|m| m.role == "system");
    }

    /// Answers one message; one that does not fit is taken back, and the conversation goes on without it.
    fn turn(&mut self, message: &str, ui: Ui) -> Result<Outcome> {
        self.messages.push(Message::new("user", message));
        let ids = self.tokenizer.encode_chat(&self.template.render(&self.messages, Then::Reply)?)?;
        let context = self.runner.context();
        if ids.len() >= context {
            self.messages.pop();
            crate::ui::say(&format!(
                "the conversation with this message has {} and the context holds {context}; \
                 send a shorter one, /clear to begin anew, or leave and use a larger --context",
                counted(ids.len(), "token")
            ));
            return Ok(Outcome::No);
        }
        self.answer(&ids, ui)?;
        Ok(Outcome::Done)
    }

    /// Feeds what the cache lacks of `ids`, and streams the reply.
    fn answer(&mut self, ids: &[u32], ui: Ui) -> Result<()> {
        // The last id is always fed again, because its logits begin the reply.
        let same = self.fed.iter().zip(ids).take_while(|(a, b)| a == b).count().min(ids.len() - 1);
        self.runner.truncate(same);
        self.fed.truncate(same);
        let (done, text) = self.runner.stream(&ids[same..], &self.settings, ui)?;
        self.fed.extend_from_slice(&ids[same..]);
        self.fed.extend_from_slice(&done.ids);
        self.fed.truncate(self.runner.position());
        if ui.json {
            report::print_json_line(&json!({
                "text": text, "ended": done.ended, "prompt_tokens": ids.len(), "fed_tokens": done.prompt_tokens,
                "generated_tokens": done.ids.len(), "decode_tok_s": done.decode_tok_s(),
            }))?;
        } else {
            report::print("\n")?;
        }
        if done.ended == Ended::Context {
            let context = self.runner.context();
            crate::ui::say(&format!(
                "the context of {} is full; /clear begins anew, --context makes it larger",
                counted(context, "token")
            ));
        }
        self.messages.push(Message::new("assistant", text));
        Ok(())
    }
}
