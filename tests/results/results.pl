#!/usr/bin/env perl
# Repeats the beginning of each published result (configs/results/NAME/record.json) by 'tessera verify'.
#
#   results.pl REPOSITORY PROGRAM [STEPS]
#
# STEPS (20) of each are taken. On a processor of the same kind every bit must be the same; on another one losses must
# agree within 1e-3. A result whose data this machine does not have, or has in another version, is left out; with none
# left, the exit code is 77: skipped.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use JSON::PP;
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of);

die "usage: results.pl REPOSITORY PROGRAM [STEPS]\n" unless @ARGV == 2 || @ARGV == 3;
my ($repository, $program) = map { abs_path($_) // die "$_: no such file\n" } @ARGV[0, 1];
my $steps = $ARGV[2] // 20;
my $scratch = tempdir(CLEANUP => 1);
chdir $repository or die "$repository: $!\n";
my ($repeated, $failures) = (0, 0);

# Whether all differences are of numbers that are close.
sub are_close {
  for my $difference (@_) {
    return 0 if $difference->{what} !~ /^(?:loss|grad_norm|lr|validation_loss) in /;
    my ($expected, $got) = @$difference{qw(expected got)};
    return 0 if abs($expected - $got) > 1e-3 * abs($expected);
  }
  return 1;
}

for my $record (sort glob 'configs/results/*/record.json') {
  my ($folder, $name) = $record =~ m{^(.*/([^/]+))/record\.json$};
  my $recorded = decode_json(text_of($record));
  my $last = $recorded->{step};
  $last = $steps if $last > $steps;
  # The curve of a long run has every so many steps.
  my $first = $recorded->{record}{curve}[0][0];
  $last = $first if $last < $first;
  my $answer = qx{'$program' verify '$folder' --steps 1:$last --json 2>'$scratch/errors'};
  my ($code, $errors) = ($? >> 8, text_of("$scratch/errors"));
  if ($code == 2 && $errors =~ /data have changed|no such (?:file|folder)|matches nothing/) {
    print "left out  $name: $errors";
    next;
  }
  my $verdict = eval { decode_json($answer) };
  if (!$verdict) {
    print "FAILED    $name: $errors";
    ++$failures;
    next;
  }
  ++$repeated;
  my $elsewhere = grep { /^the processor was / } @{$verdict->{notes}};
  my @differences = @{$verdict->{differences}};
  my $good = $verdict->{numbers} > 0 && (!@differences || $elsewhere && are_close(@differences));
  printf "%-9s %s: steps 1 to %d, %d numbers, %s\n", $good ? 'ok' : 'FAILED', $name, $last, $verdict->{numbers},
    !@differences ? 'the same in all bits' : scalar(@differences) . ' of them differ, on another processor';
  print "          step $_->{step}: $_->{what} (expected $_->{expected}, got $_->{got})\n" for $good ? () : @differences;
  ++$failures if !$good;
}
exit($failures ? 1 : $repeated ? 0 : 77);
