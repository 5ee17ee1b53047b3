//! Families of figures as the `prometheus` crate encodes them.

use std::collections::BTreeMap;

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Encoder, TextEncoder};

use crate::store::figures::Distribution;
use crate::store::figures::histogram::to_f64;

/// Labels with values, by name.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// What a single number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// Families by name, each with its series in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Families(BTreeMap<String, (MetricFamily, Vec<Metric>)>);

impl Families {
    /// Adds a number.
    pub(super) fn one(
        &mut self,
        name: &str,
        help: &str,
        kind: Kind,
        labels: &Labels<'_>,
        value: f64,
    ) {
        let mut metric = labelled(labels);
        let kind = match kind {
            Kind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
                MetricType::COUNTER
            }
            Kind::Gauge => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
                MetricType::GAUGE
            }
        };
        self.add(name, help, kind, metric);
    }

    /// Adds a histogram.
    pub(super) fn distribution(
        &mut self,
        name: &str,
        help: &str,
        labels: &Labels<'_>,
        of: &Distribution,
    ) {
        let mut below = 0_u64;
        let mut buckets = Vec::with_capacity(of.bounds.len());
        for (bound, count) in of.bounds.iter().zip(&of.counts) {
            below = below.wrapping_add(*count);
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(below);
            buckets.push(bucket);
        }
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(of.count());
        histogram.set_sample_sum(of.sum);
        let mut metric = labelled(labels);
        metric.set_histogram(histogram);
        self.add(name, help, MetricType::HISTOGRAM, metric);
    }

    /// Adds a counter, a gauge of a whole number, or a gauge that is 1 and says something with its
    /// label.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.one(name, help, Kind::Counter, &[], to_f64(value));
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.one(name, help, Kind::Gauge, &[], to_f64(value));
    }

    pub(super) fn info(&mut self, name: &str, help: &str, label: &str, value: &str) {
        self.one(name, help, Kind::Gauge, &[(label, value)], 1.0);
    }

    fn add(&mut self, name: &str, help: &str, kind: MetricType, metric: Metric) {
        let (family, series) = self.0.entry(name.to_owned()).or_default();
        if series.is_empty() {
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
        }
        series.push(metric);
    }

    /// Writes all as text.
    pub(super) fn encode(self) -> String {
        let families = self.0.into_values().map(|(mut family, series)| {
            family.set_metric(series);
            family
        });
        let families: Vec<_> = families.collect();
        let mut text = Vec::new();
        // Every family here has a name and a series, and memory takes all.
        let _ = TextEncoder::new().encode(&families, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn labelled(labels: &Labels<'_>) -> Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    let mut metric = Metric::default();
    metric.set_label(pairs.collect());
    metric
}
