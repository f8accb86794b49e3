//! Operations that copy state of a store into another store of its type.

use std::sync::Arc;

use super::super::change::{Op, Resend};
use super::super::entry::Named;
use super::super::lease::Lease;
use super::super::view::View;
use super::Snapshot;
use crate::resource::{Name, Resource};

impl Snapshot {
    pub(crate) fn op_for(&self, view: View, resource: &Arc<Resource>) -> Op {
        Op::held(view, Arc::clone(resource), self.lease(view, resource.name().as_str()))
    }

    pub(crate) fn lease(&self, view: View, name: &str) -> Option<Lease> {
        if self.leased == 0 { None } else { self.get(name)?.lease(view) }
    }

    /// Copies a name, member or not, for clients that newly asked for it.
    pub(in crate::cache) fn ops_by_name(&self, name: &Name) -> Vec<Op> {
        match self.member(name) {
            Some(member) => vec![self.op_as_named(member)],
            None => self.ops_of(name),
        }
    }

    /// Translates an operation, already applied here, for clients that asked for its name.
    pub(in crate::cache) fn op_by_name(&self, op: &Op) -> Vec<Op> {
        let member = self.member(op.name());
        match (op, member) {
            (Op::Set { resource, resend, lease, .. }, _)
                if member.is_none_or(|held| held.same_content(resource)) =>
            {
                let (resource, resend, lease) = (Arc::clone(resource), *resend, *lease);
                vec![Op::Set { view: View::Named, resource, resend, lease }]
            }
            // Whatever it says of the name or a former member, clients see the member.
            (Op::Set { .. } | Op::Remove { .. } | Op::Forget { .. } | Op::Alias { .. }, Some(member)) => {
                vec![self.op_as_named(member)]
            }
            (Op::Fail { .. } | Op::LeaveCollection { .. }, Some(member)) => {
                vec![op.clone(), self.op_as_named(member)]
            }
            (Op::Renew { name, lease, .. }, _) => {
                vec![Op::Renew { view: View::Named, name: name.clone(), lease: *lease }]
            }
            (Op::Remove { view: View::Wildcard, name } | Op::Forget { view: View::Wildcard, name }, None) => {
                let ops = self.ops_of(name);
                // Only the wildcard's answer is known now.
                let forget = || vec![Op::Forget { view: View::Named, name: name.clone() }];
                if ops.is_empty() { forget() } else { ops }
            }
            (op, _) => vec![op.clone()],
        }
    }

    fn member(&self, name: &Name) -> Option<&Arc<Resource>> {
        self.get(name.as_str())?.as_member().present()
    }

    /// Copies a member for clients that asked for its name.
    pub(crate) fn op_as_named(&self, member: &Arc<Resource>) -> Op {
        Op::held(View::Named, Arc::clone(member), self.lease(View::Wildcard, member.name().as_str()))
    }

    /// Copies the origin's answer for a name.
    pub(in crate::cache) fn ops_of(&self, name: &Name) -> Vec<Op> {
        let Some(entry) = self.get(name.as_str()) else { return Vec::new() };
        let mut ops = match entry.named() {
            Named::Unknown | Named::Gone => Vec::new(),
            Named::Superseded(_) => {
                self.member(name).map(|member| self.op_as_named(member)).into_iter().collect()
            }
            Named::Alias(alias) => vec![match alias.now() {
                Some(resource) => {
                    let (resource, resend) = (Arc::clone(resource), Resend::Answer);
                    Op::Alias { name: name.clone(), resource, resend }
                }
                None => Op::Remove { view: View::Named, name: name.clone() },
            }],
            Named::Absent => vec![Op::Remove { view: View::Named, name: name.clone() }],
            Named::Present(resource) => vec![self.op_for(View::Named, resource)],
            Named::Collection { .. } => {
                let members = self.members_of(name);
                let mut ops: Vec<Op> = members.map(|held| self.op_for(View::Named, held)).collect();
                ops.push(Op::Complete { name: name.clone() });
                ops
            }
        };
        ops.extend(entry.failed().map(|failed| Op::Fail {
            name: name.clone(),
            failure: Arc::clone(&failed.failure),
            listed: false,
        }));
        ops
    }
}
