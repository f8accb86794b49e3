//! One request and the whole answer to it.

use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use super::Transport;
use super::client_request::Query;
use super::client_response::Found;
use super::conversation::Conversation;
use super::conversation_end::Ended;
use super::subscribed_names::Subscription;
use super::watched_resources::Held;

/// Shortest and longest silence that completes an answer to a wildcard or collection: streams do not mark its
/// end (R-Up-22). A relay reports an incomplete set after 500 ms. In between, the silence is twice the
/// longest wait for a response: some servers send the next part after the last ACK. Example: with a round
/// trip of 500 ms, the first response comes after 600 ms, and a silence of 1.2 s ends the answer.
const QUIET: (Duration, Duration) = (Duration::from_millis(700), Duration::from_secs(3));
/// Bytes of an answer. A server that sends without end is at fault.
const LARGEST: usize = 1 << 30;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) held: Held,
    /// Why the answer is incomplete, in the server's words if any.
    pub(crate) reason: Option<String>,
}

/// Asks, and waits up to `timeout` for the whole answer.
pub(crate) async fn get(query: Query, timeout: Duration) -> anyhow::Result<Answer> {
    let Query { server, transport, asked, .. } = &query;
    let begun = Instant::now();
    let mut answer = Answer { held: Held::new(asked), reason: None };
    let opened = Conversation::open(&query, &answer.held).await;
    let mut conversation = opened.map_err(|ended| ended.explain(*transport))?;
    let all = answer.take_all(&mut conversation, *transport, asked);
    match tokio::time::timeout(timeout.saturating_sub(begun.elapsed()), all).await {
        Ok(result) => result.map_err(|ended| ended.explain(*transport))?,
        Err(_) => {
            if conversation.transfers.is_under_way() {
                answer.reason = Some(format!(
                    "a response was still on its way after {timeout:?}; raise --timeout for a slow link"
                ));
            } else if answer.held.unanswered.is_empty() && !answer.held.found.is_empty() {
                answer.reason = Some(format!("more resources may follow after {timeout:?}; raise --timeout"));
            }
            if asked.names.is_empty() && answer.held.found.is_empty() {
                let why = answer.reason.map(|words| format!(": {words}")).unwrap_or_default();
                bail!("{} has not answered within {timeout:?}{why}", server.uri)
            }
        }
    }
    if answer.reason.is_none() && *transport != Transport::Delta && answer.may_be_aliased(asked) {
        answer.reason = Some(
            "a resource under another name may be the answer: --transport delta shows aliases".to_owned(),
        );
    }
    Ok(answer)
}

impl Answer {
    pub(crate) fn is_whole(&self) -> bool {
        self.held.absent.is_empty() && self.held.unanswered.is_empty() && self.reason.is_none()
    }

    /// Whether a resource came by an unrequested name: an unanswered alias may mean it.
    fn may_be_aliased(&self, asked: &Subscription) -> bool {
        let is_unasked =
            |(name, found): (&String, &Found)| asked.answered_by(name, &found.aliases).is_empty();
        !self.held.unanswered.is_empty() && self.held.found.iter().any(is_unasked)
    }

    async fn take_all(
        &mut self,
        conversation: &mut Conversation,
        transport: Transport,
        asked: &Subscription,
    ) -> Result<(), Ended> {
        let (mut is_first, mut quiet, mut waits_since) = (true, QUIET.0, Instant::now());
        let mut bytes = 0;
        while is_first || !self.held.unanswered.is_empty() || asked.is_open_ended() {
            let is_awaited = is_first || !self.held.unanswered.is_empty();
            let update = match conversation.next(if is_awaited { Duration::MAX } else { quiet }).await {
                Ok(Some(update)) => update,
                Ok(None) => break,
                Err(Ended::NotYet(words)) => {
                    self.reason = Some(words);
                    continue;
                }
                // A relay has sent everything that it holds.
                Err(ended)
                    if ended.is_unavailable() && !(asked.names.is_empty() && self.held.found.is_empty()) =>
                {
                    self.reason = Some(ended.to_string());
                    break;
                }
                Err(ended) if ended.is_end() && !self.held.found.is_empty() => {
                    self.reason = Some(ended.to_string());
                    break;
                }
                Err(ended) => return Err(ended),
            };
            is_first = false;
            self.reason = None;
            bytes += update.bytes;
            if bytes > LARGEST {
                let large = "the answer of the server has more than 1 GiB; ask for some resources by name";
                return Err(Ended::Faulty(anyhow::Error::msg(large)));
            }
            quiet = quiet.max(2 * waits_since.elapsed()).min(QUIET.1);
            waits_since = Instant::now();
            let is_whole = update.is_whole(asked);
            self.held.apply(update, asked);
            // A poll has one answer, and so has a whole type with full states.
            if transport == Transport::Rest || is_whole {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::client_response::Update;
    use super::*;
    use deltafan_core::resource::Kind;

    const GLOB: &str = "xdstp://a/t/foo/*?k=v&l=w";
    const X: &str = "xdstp://a/t/foo/x?k=v&l=w";

    /// Found, absent and unanswered names after these responses, each with resources and removals.
    fn after(of: &Subscription, responses: &[(&[&str], &[&str])]) -> [Vec<String>; 3] {
        let mut held = Held::new(of);
        for (found, removed) in responses {
            let found: Vec<_> = found.iter().map(|name| (*name, "1", "")).collect();
            held.apply(Update::of_test(Kind::Endpoint, true, &found, removed), of);
        }
        let found = held.found.into_keys().collect();
        [found, held.absent.into_iter().collect(), held.unanswered.into_iter().collect()]
    }

    #[test]
    fn a_resource_answers_each_spelling_of_its_name() {
        let spelled = "xdstp://a/t/foo/x?l=w&k=v";
        let of = Subscription::of_test(Kind::Endpoint, &[spelled, "e"]);
        assert_eq!(after(&of, &[(&[X], &[])]), [vec![X], vec![], vec!["e"]]);
        assert_eq!(after(&of, &[(&["e"], &[X])]), [vec!["e"], vec![spelled], vec![]]);
        assert_eq!(after(&of, &[(&["e"], &[X]), (&[X], &[])]), [vec!["e", X], vec![], vec![]]);
        assert_eq!(after(&of, &[(&["e", X], &[]), (&[], &[spelled])]), [vec!["e"], vec![spelled], vec![]]);
        assert_eq!(after(&of, &[(&[X], &[]), (&[spelled], &[])])[0], [X], "one resource");
    }

    #[test]
    fn the_members_of_a_collection_answer_it() {
        let of = Subscription::of_test(Kind::Endpoint, &[GLOB]);
        assert_eq!(after(&of, &[(&["xdstp://a/t/foo/x"], &[])])[2], [GLOB], "not a member");
        assert_eq!(after(&of, &[(&[X], &[])]), [vec![X], vec![], vec![]]);
    }

    #[test]
    fn an_empty_collection_is_absent_until_it_has_a_member() {
        let of = Subscription::of_test(Kind::Endpoint, &[GLOB]);
        assert_eq!(after(&of, &[(&[], &[GLOB])]), [vec![], vec![GLOB], vec![]]);
        assert_eq!(after(&of, &[(&[], &[GLOB]), (&[X], &[])]), [vec![X], vec![], vec![]]);
        assert_eq!(after(&of, &[(&[X], &[]), (&[], &[GLOB])]), [vec![], vec![GLOB], vec![]]);
    }

    #[test]
    fn a_resource_that_comes_again_answers_another_alias() {
        let of = Subscription::of_test(Kind::VirtualHost, &["r/a", "r/b"]);
        let mut held = Held::new(&of);
        for alias in ["r/a", "r/b"] {
            let mut update = Update::of_test(Kind::VirtualHost, true, &[("r/host", "1", "")], &[]);
            update.found.iter_mut().for_each(|(_, found)| found.aliases.push(alias.to_owned()));
            held.apply(update, &of);
        }
        assert!(held.unanswered.is_empty() && held.absent.is_empty());
    }
}
