#!/usr/bin/env perl
# Counts the instructions of one call of each row of `tessera bench dispatch` under callgrind, prints them as
# docs/performance-calls.md's table, and fails where a count is more than a tenth above what the page says.
#   dispatch_cost.pl SOURCE PROGRAM
use strict;
use warnings;
use File::Temp qw(tempdir);

my ($source, $program) = @ARGV;
my $allowed = 1.1;
if (system('command -v valgrind >/dev/null') != 0) {
  print "dispatch_cost: valgrind is not installed (Debian, Ubuntu: apt-get install valgrind)\n";
  exit($ENV{TESSERA_REQUIRE_VALGRIND} ? 1 : 77);
}

# One run for all rows: callgrind counts within counted_calls() only, and writes a file of its own for each call of it.
my $folder = tempdir(CLEANUP => 1);
my $output = qx(TESSERA_SIMD=avx2 OMP_NUM_THREADS=1 valgrind --tool=callgrind --toggle-collect=counted_calls \\
  --dump-after=counted_calls --callgrind-out-file='$folder/count' '$program' 2>'$folder/errors');
die "dispatch_cost: the program failed:\n$output" . qx(cat '$folder/errors') unless $? == 0;

sub read_file { my ($name) = @_; open my $in, '<', $name or return ''; local $/; return scalar <$in> }

open my $page, '<', "$source/docs/performance-calls.md" or die "dispatch_cost: no docs/performance-calls.md: $!\n";
my (%said, @rows);
while (<$page>) {
  my ($row, @counts) = /^\| ([\w ]+?) \| ([\d,]+) instructions \| ([\d,]+) \|/ or next;
  push @rows, $row;
  @{ $said{$row} }{qw(plain distributed)} = map { s/,//gr } @counts;
}
die "dispatch_cost: docs/performance-calls.md has no table of instructions\n" unless %said;

my ($number, %count) = (0);
for (split /\n/, $output) {
  my ($row, $form, $calls) = /^(.+): (plain|distributed): (\d+)$/ or die "dispatch_cost: the program printed '$_'\n";
  ++$number;
  my ($instructions) = read_file("$folder/count.$number") =~ /^(?:summary|totals): (\d+)/m;
  die "dispatch_cost: callgrind counted nothing for $row, $form\n" unless $instructions;
  $count{$row}{$form} = int($instructions / $calls + 0.5);
}

my $wrong = 0;
for my $row (@rows) {
  my $found = $count{$row} // die "dispatch_cost: `bench dispatch` has no row '$row', which docs/performance-calls.md has\n";
  printf "| %s | %d instructions | %d |\n", $row, @$found{qw(plain distributed)};
  for my $form ('plain', 'distributed') {
    next if $found->{$form} <= $allowed * $said{$row}{$form};
    print "dispatch_cost: $row, $form: $found->{$form} instructions; docs/performance-calls.md says $said{$row}{$form}\n";
    ++$wrong;
  }
}
exit($wrong ? 1 : 0);
