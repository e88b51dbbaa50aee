//! Budgets: how many tokens and how much money agents may use in a day and in a month.

use crate::{Invalid, TaskFailure, TaskFailureCode, json};
use serde::{Deserialize, Serialize};
use std::fmt;

/// From which part of a budget on people are warned.
const WARN_AT: f64 = 0.8;

/// How much may be used. Days and months are those of UTC. Without a number there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Input and output tokens in a day.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000_000_000_i64))]
    #[serde(deserialize_with = "json::whole_or_null")]
    pub tokens_per_day: Option<u64>,
    /// Input and output tokens in a calendar month.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000_000_000_i64))]
    #[serde(deserialize_with = "json::whole_or_null")]
    pub tokens_per_month: Option<u64>,
    /// US dollars in a day. Only models with known prices count.
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0, maximum = 1_000_000_000.0))]
    pub cost_per_day: Option<f64>,
    /// US dollars in a calendar month. Only models with known prices count.
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0, maximum = 1_000_000_000.0))]
    pub cost_per_month: Option<f64>,
}

/// What a budget is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BudgetScope {
    /// Everybody on the server together.
    Server,
    /// Everybody in one tenant together.
    Tenant,
    /// One project.
    Project,
    /// All projects of one person together.
    Person,
}

/// How long a budget lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BudgetPeriod {
    Day,
    Month,
}

/// What a budget counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BudgetUnit {
    Tokens,
    /// US dollars.
    Cost,
}

impl BudgetUnit {
    pub fn as_str(self) -> &'static str {
        match self {
            BudgetUnit::Tokens => "tokens",
            BudgetUnit::Cost => "cost",
        }
    }
}

/// What was used in some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Spent {
    pub tokens: u64,
    /// US dollars, as far as prices are known.
    pub cost: f64,
}

/// What was used today and in this month.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Spending {
    pub today: Spent,
    pub this_month: Spent,
}

/// One number of a budget, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetState {
    pub scope: BudgetScope,
    pub period: BudgetPeriod,
    pub unit: BudgetUnit,
    pub limit: f64,
    pub used: f64,
}

impl Budget {
    pub fn validate(&self) -> Result<(), Invalid> {
        let tokens =
            |most: Option<u64>| most.is_none_or(|n| (1..=1_000_000_000_000_000).contains(&n));
        let cost = |most: Option<f64>| most.is_none_or(|dollars| (0.0..=1e9).contains(&dollars));
        let good = tokens(self.tokens_per_day)
            && tokens(self.tokens_per_month)
            && cost(self.cost_per_day)
            && cost(self.cost_per_month);
        let problem = "tokens must be between 1 and 10^15, and dollars between 0 and 10^9";
        good.then_some(()).ok_or_else(|| Invalid::new("budget", problem))
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The smaller of the two values for each number.
    pub fn and(self, other: Self) -> Self {
        fn least<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(if b < a { b } else { a }),
                (a, b) => a.or(b),
            }
        }
        Self {
            tokens_per_day: least(self.tokens_per_day, other.tokens_per_day),
            tokens_per_month: least(self.tokens_per_month, other.tokens_per_month),
            cost_per_day: least(self.cost_per_day, other.cost_per_day),
            cost_per_month: least(self.cost_per_month, other.cost_per_month),
        }
    }

    /// The numbers of the budget, each with what is used of it.
    pub fn states(&self, scope: BudgetScope, spending: &Spending) -> Vec<BudgetState> {
        use {BudgetPeriod as P, BudgetUnit as U};
        let Spending { today, this_month } = spending;
        let tokens = |limit: Option<u64>| limit.map(|limit| limit as f64);
        let numbers = [
            (P::Day, U::Tokens, tokens(self.tokens_per_day), today.tokens as f64),
            (P::Month, U::Tokens, tokens(self.tokens_per_month), this_month.tokens as f64),
            (P::Day, U::Cost, self.cost_per_day, today.cost),
            (P::Month, U::Cost, self.cost_per_month, this_month.cost),
        ];
        let state = |(period, unit, limit, used): (_, _, Option<f64>, _)| {
            Some(BudgetState { scope, period, unit, limit: limit?, used })
        };
        numbers.into_iter().filter_map(state).collect()
    }
}

impl BudgetState {
    /// Models without a price work within a budget of no dollars.
    pub fn is_spent(&self) -> bool {
        self.used > 0.0 && self.used >= self.limit
    }

    /// Whether people have to be warned: at 80 % and above.
    pub fn is_nearly_spent(&self) -> bool {
        self.used > 0.0 && self.used >= self.limit * WARN_AT
    }

    /// The limit and what is used of it, as people may know them who have no part in setting it:
    /// what a tenant or the server uses tells about others.
    pub fn figures(&self) -> Option<(f64, f64)> {
        match self.scope {
            BudgetScope::Server | BudgetScope::Tenant => None,
            BudgetScope::Project | BudgetScope::Person => Some((self.limit, self.used)),
        }
    }

    /// The failure of a task that may not ask its model again.
    pub fn failure(&self) -> TaskFailure {
        TaskFailure::new(TaskFailureCode::BudgetExceeded, self.to_string())
    }
}

/// What the person whose task has no budget left is told.
impl fmt::Display for BudgetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.scope {
            BudgetScope::Server => "the server's",
            BudgetScope::Tenant => "the tenant's",
            BudgetScope::Project => "the project's",
            BudgetScope::Person => "your",
        };
        let (time, next) = match self.period {
            BudgetPeriod::Day => ("today", "tomorrow"),
            BudgetPeriod::Month => ("this month", "next month"),
        };
        let (most, used) = match (self.figures(), self.unit) {
            (None, _) => Default::default(),
            (Some((limit, used)), BudgetUnit::Tokens) => {
                (format!(" of {limit} tokens"), format!(" ({used} used)"))
            }
            (Some((limit, used)), BudgetUnit::Cost) => {
                (format!(" of ${limit}"), format!(" (${used:.4} spent)"))
            }
        };
        write!(
            f,
            "{whose} budget{most} for {time} is used up{used}; it begins again {next} at 00:00 UTC"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget {
        tokens_per_day: Some(1000),
        tokens_per_month: None,
        cost_per_day: Some(0.0),
        cost_per_month: Some(5.0),
    };

    fn spending(tokens: u64, cost: f64) -> Spending {
        let spent = Spent { tokens, cost };
        Spending { today: spent, this_month: spent }
    }

    fn spent(used: &Spending) -> Vec<(BudgetPeriod, BudgetUnit)> {
        let states = BUDGET.states(BudgetScope::Project, used);
        states.iter().filter(|state| state.is_spent()).map(|s| (s.period, s.unit)).collect()
    }

    #[test]
    fn a_budget_is_spent_when_its_number_is_reached() {
        use {BudgetPeriod as P, BudgetUnit as U};
        assert_eq!(spent(&spending(999, 0.0)), []);
        assert_eq!(spent(&spending(1000, 0.0)), [(P::Day, U::Tokens)]);
        assert_eq!(spent(&spending(0, 0.001)), [(P::Day, U::Cost)]);
        assert_eq!(spent(&spending(0, 5.0)), [(P::Day, U::Cost), (P::Month, U::Cost)]);
    }

    #[test]
    fn people_are_warned_from_four_fifths_on() {
        let warned = |tokens| {
            let states = BUDGET.states(BudgetScope::Person, &spending(tokens, 0.0));
            states.iter().filter(|state| state.is_nearly_spent()).count()
        };
        assert_eq!([0, 799, 800, 1000, 2000].map(warned), [0, 0, 1, 1, 1]);
    }

    #[test]
    fn what_others_use_is_not_told() {
        let (period, unit) = (BudgetPeriod::Day, BudgetUnit::Tokens);
        let said = |scope| BudgetState { scope, period, unit, limit: 10.0, used: 11.0 }.to_string();
        let end = "it begins again tomorrow at 00:00 UTC";
        assert_eq!(
            [BudgetScope::Tenant, BudgetScope::Person].map(said),
            [
                format!("the tenant's budget for today is used up; {end}"),
                format!("your budget of 10 tokens for today is used up (11 used); {end}"),
            ]
        );
    }

    #[test]
    fn the_smaller_number_counts() {
        let other = Budget { tokens_per_day: Some(2000), cost_per_month: Some(1.5), ..BUDGET };
        let both = Budget { tokens_per_day: Some(1000), cost_per_month: Some(1.5), ..BUDGET };
        assert_eq!((BUDGET.and(other), other.and(BUDGET)), (both, both));
        assert_eq!(BUDGET.and(Budget::default()), BUDGET);
    }

    #[test]
    fn budgets_out_of_range_are_refused() {
        let none = Budget::default();
        for refused in [
            Budget { tokens_per_day: Some(0), ..none },
            Budget { tokens_per_month: Some(1_000_000_000_000_001), ..none },
            Budget { cost_per_day: Some(-0.01), ..none },
            Budget { cost_per_month: Some(f64::NAN), ..none },
            Budget { cost_per_month: Some(f64::INFINITY), ..none },
        ] {
            assert!(refused.validate().is_err(), "{refused:?}");
        }
        assert!(BUDGET.validate().is_ok());
    }
}
