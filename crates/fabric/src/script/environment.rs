// SPDX-License-Identifier: MIT OR Apache-2.0
//! The script of the environment, for programs that exist.

use super::report::Place;
use super::{Engine, MAX_TEXT, Rule, Script, ScriptError, parse};
use crate::fabric::Fabric;
use crate::model::Model;
use std::io::Read as _;
use std::sync::{Mutex, PoisonError};

/// The file of the script.
const FILE: &str = "UVERBS_HCA_FAULTS";

/// The script that the environment names; `None` if it names none.
///
/// # Errors
/// The file can't be read, or is not a script: why, in words.
pub fn of_environment() -> Result<Option<Script>, String> {
    of_environment_for(|_| None)
}

/// As [`of_environment`], for a process that has devices of some models only. `refuses` says why a rule has no effect on any of them.
///
/// # Errors
/// As [`of_environment`], and if a rule has no effect.
pub fn of_environment_for(refuses: impl Fn(&Rule) -> Option<&'static str>) -> Result<Option<Script>, String> {
    let Some(path) = std::env::var_os(FILE) else { return Ok(None) };
    let shown = std::path::Path::new(&path).display();
    let read = || {
        let mut text = String::new();
        // One byte more shows that the file is too long.
        std::fs::File::open(&path)?.take(MAX_TEXT as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error: std::io::Error| format!("{FILE}: {shown}: {error}"))?;
    parse::script(&text, refuses).map(Some).map_err(|error| format!("{FILE}: {shown}: {error}"))
}

/// Logs a warning that no fabric of this process has logged.
fn say_once(warning: String) {
    // There are not more of them than models.
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.contains(&warning) {
        log::warn!("{warning}");
        said.push(warning);
    }
}

impl<M: Model> Fabric<M> {
    /// Sets the script that the environment asks for.
    pub(crate) fn scripted(self) -> Self {
        let script = of_environment_for(M::refuses).or_else(|error| {
            // The process may have fabrics of several models, and the rule is for another one.
            let script = of_environment()?;
            say_once(error);
            Ok(script)
        });
        let script = script.unwrap_or_else(|error: String| {
            log::error!("{error}");
            None
        });
        let place = Place::of_process();
        if script.is_some() || place.is_some() {
            let process = place.map_or(1, |place| place.number);
            self.set_engine(script.unwrap_or_default(), process);
        }
        if place.is_some() {
            self.report();
            self.enter(|world| {
                if let Some(engine) = &mut world.net.script {
                    engine.write_counts();
                }
            });
        }
        self
    }

    fn set_engine(&self, script: Script, process: u64) {
        self.enter(|world| {
            world.net.script = Some(Box::new(Engine::new(script, process, world.now)));
            world.net.name_devices();
        });
    }

    /// Sets a script, instead of the script before. An empty one only counts; [`no_script`](Self::no_script) ends it.
    ///
    /// # Errors
    /// A rule has no effect on the devices of this fabric. The line is the number of the rule.
    pub fn set_script(&self, script: Script) -> Result<(), ScriptError> {
        match script.refused::<M>() {
            Some(refused) => Err(refused),
            None => {
                self.replace_script(script);
                Ok(())
            }
        }
    }

    fn replace_script(&self, script: Script) {
        let left = self.enter(|world| match &mut world.net.script {
            Some(engine) => {
                engine.replace(script, world.now);
                None
            }
            None => Some(script),
        });
        if let Some(script) = left {
            self.set_engine(script, 1);
        }
    }

    /// Sets a script by its text. The guide "Faults by script" has its grammar.
    ///
    /// # Errors
    /// The text is not a script, or a rule has no effect on the devices of this fabric.
    ///
    /// # Examples
    /// ```text
    /// fabric.script("packet device=hca0 opcode=send wr=7 : drop")?;
    /// ```
    pub fn script(&self, text: &str) -> Result<(), ScriptError> {
        self.replace_script(parse::script(text, M::refuses)?);
        Ok(())
    }

    /// Adds the rules of a text to the script. Those that are there go on counting.
    ///
    /// # Errors
    /// The text is not a script, a rule has no effect on the devices of this fabric, or there are too many rules then.
    pub fn add_rules(&self, text: &str) -> Result<(), ScriptError> {
        let script = parse::script(text, M::refuses)?;
        if !self.read(|world| world.net.is_scripted()) {
            self.replace_script(Script::default());
        }
        self.enter(|world| {
            let Some(engine) = &mut world.net.script else { return Ok(()) };
            for rule in script.0 {
                if engine.is_full() {
                    let message = format!("more than {} rules", super::MAX_RULES);
                    return Err(ScriptError { line: 0, column: 0, message });
                }
                engine.push(rule);
            }
            Ok(())
        })
    }

    /// The script in force, if there is one.
    #[must_use]
    pub fn rules(&self) -> Option<Script> {
        let of = |engine: &Engine| Script(engine.rules.iter().map(|active| active.rule.clone()).collect());
        self.read(|world| world.net.script.as_deref().map(of))
    }

    /// Ends the script. Packets that it delays arrive later still.
    pub fn no_script(&self) {
        self.enter(|world| world.net.script = None);
    }

    /// Notes a verb that no command to the device carries: a post. Returns the error that it has.
    #[must_use]
    pub fn script_post(&self, device: usize, verb: &str, qp: u32) -> Option<uverbs_core::Errno> {
        self.enter(|world| world.net.script_call(world.now, device, verb, Some(qp)))
    }
}
