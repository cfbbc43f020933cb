#!/usr/bin/env perl
# How near the choice of `tessera plan --search` is to the best of all layouts: runs every candidate of a search on this
# machine, in turn, and prints its planned step beside the median step of its runs. It needs a quiet machine, so no test
# calls it; docs/planning-figures.md has what it has printed.
#
#   plan_search.pl PROGRAM ROUNDS STEPS TRY CONFIG [OVERRIDES...]
#
# TRY: candidates that the search itself runs (--try); 0: it chooses by the plan.
use strict;
use warnings;
use File::Temp qw(tempdir);
use JSON::PP;

die "usage: plan_search.pl PROGRAM ROUNDS STEPS TRY CONFIG [OVERRIDES...]\n" unless @ARGV >= 5;
my ($program, $rounds, $steps, $try, $config, @overrides) = @ARGV;
my $folder = tempdir(CLEANUP => 1);
my $first_steps = 5;  # memory is touched for the first time
die "STEPS: more than $first_steps are needed\n" unless $steps > $first_steps;

sub quoted { return join ' ', map { "'" . s/'/'\\''/gr . "'" } @_; }

sub output_of {
  my ($command) = @_;
  my $text = qx{$command 2>$folder/error};
  if ($? != 0) { system 'cat', "$folder/error"; die "failed: $command\n"; }
  return $text;
}

sub median { my @sorted = sort { $a <=> $b } @_; return $sorted[@sorted / 2]; }

sub step_of_run {
  my ($candidate) = @_;
  my $metrics = "$folder/metrics.jsonl";
  unlink $metrics;
  output_of("'$program' train " . quoted($config, @overrides, @{ $candidate->{overrides} }, "train.steps=$steps",
    'optimizer.warmup=1', 'data.validation=0', 'checkpoint.folder=', "log.metrics=$metrics"));
  open my $lines, '<', $metrics or die "$metrics: $!\n";
  my @seconds = map { decode_json($_)->{seconds} } <$lines>;
  return median(@seconds[$first_steps .. $#seconds]);
}

my @try = $try > 0 ? ('--try', $try) : ();
my $found = decode_json(output_of("'$program' plan " . quoted($config, '--search', '--json', @try, @overrides)));
my @candidates = grep { exists $_->{seconds} } @{ $found->{candidates} };
my @runs;
for my $round (1 .. $rounds) {
  push @{ $runs[$_] }, step_of_run($candidates[$_]) for 0 .. $#candidates;
}
my @measured = map { median(@$_) } @runs;
my ($best) = sort { $a <=> $b } @measured;
print "| layout | micro-batch | saves memory by | planned | run | over the best |\n| --- | --: | --- | --: | --: | --: |\n";
for my $i (0 .. $#candidates) {
  my $candidate = $candidates[$i];
  printf "| %s | %d | %s | %.1f ms | %.1f ms | %.1f%% |\n", @$candidate{qw(layout micro_batch savings)},
    1e3 * $candidate->{seconds}, 1e3 * $measured[$i], 100 * ($measured[$i] / $best - 1);
}
