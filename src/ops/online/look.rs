//! Looks at all members of a cluster, whichever of them were given.

use std::collections::BTreeSet;

use crate::live::Settings;
use crate::ops::cluster::{Observer, View};
use crate::ops::{Error, Progress};

/// Looks until every member that another one names was asked, so often at most.
const LOOKS_MAX: usize = 4;

/// Asks the members that were given, and those that they name.
pub(in crate::ops) struct Lookout {
    given: BTreeSet<String>,
    settings: Settings,
    observer: Observer,
}

impl Lookout {
    pub(in crate::ops) fn new(settings: Settings) -> Self {
        let given = settings.endpoints.iter().cloned().collect();
        let observer = Observer::new(settings.clone(), false);
        Self { given, settings, observer }
    }

    /// Looks at every member.
    ///
    /// # Errors
    ///
    /// As [`Observer::look`].
    pub(in crate::ops) fn look(&mut self, progress: &dyn Progress) -> Result<View, Error> {
        let mut view = self.observer.look(progress)?;
        for _ in 1..LOOKS_MAX {
            if !self.follow(&view) {
                break;
            }
            view = self.observer.look(progress)?;
        }
        Ok(view)
    }

    /// Returns how to reach all of them, as far as they were seen.
    pub(in crate::ops) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Follows members that came and went; tells whether there were any.
    fn follow(&mut self, view: &View) -> bool {
        let unasked = view.members.iter().filter(|member| member.endpoint.is_none());
        let new: Vec<String> = unasked.flat_map(|member| member.client_urls.clone()).collect();
        let is_gone = |endpoint: &String| {
            let nobodys = |id: Option<u64>, client_urls: &[String]| {
                id.is_none() || !client_urls.contains(endpoint)
            };
            !self.given.contains(endpoint)
                && view.members.iter().any(|member| {
                    member.endpoint.as_ref() == Some(endpoint)
                        && !member.answered()
                        && nobodys(member.id, &member.client_urls)
                })
        };
        let before = self.settings.endpoints.len();
        let mut endpoints = std::mem::take(&mut self.settings.endpoints);
        endpoints.retain(|endpoint| !is_gone(endpoint));
        let went = endpoints.len() != before;
        let came: Vec<String> =
            new.into_iter().filter(|endpoint| !endpoints.contains(endpoint)).collect();
        let changed = went || !came.is_empty();
        endpoints.extend(came);
        self.settings.endpoints = endpoints;
        if changed {
            self.observer = Observer::new(self.settings.clone(), false);
        }
        changed
    }
}
