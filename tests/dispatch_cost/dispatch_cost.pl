#!/usr/bin/env perl
# Counts the instructions of one call of each row of `tessera bench dispatch` under callgrind, prints them as
# docs/performance.md's table, and fails where a count is more than a tenth above what the page says.
#   dispatch_cost.pl SOURCE PROGRAM
use strict;
use warnings;

my ($source, $program) = @ARGV;
my $allowed = 1.1;
if (system('command -v valgrind >/dev/null') != 0) {
  print "dispatch_cost: valgrind is not installed (Debian, Ubuntu: apt-get install valgrind)\n";
  exit 77;
}

sub instructions {
  my ($row, $form, $calls) = @_;
  my $out = qx(TESSERA_SIMD=avx2 OMP_NUM_THREADS=1 valgrind --tool=callgrind --callgrind-out-file=/dev/null '$program' '$row' $form $calls 2>&1);
  die "dispatch_cost: $row, $form:\n$out" unless $? == 0 && $out =~ /Collected : (\d+)/;
  return $1;
}

open my $page, '<', "$source/docs/performance.md" or die "dispatch_cost: no docs/performance.md: $!\n";
my %said;
while (<$page>) { $said{$1} = [$2, $3] if /^\| ([\w ]+?) \| ([\d,]+) instructions \| ([\d,]+) \|/ }
die "dispatch_cost: docs/performance.md has no table of instructions\n" unless %said;

my $slower = 0;
for my $row ('add', 'addmm', 'detach', 'layer_norm', 'mlp forward and backward', 'adamw over 300 parameters') {
  my @count;
  for my $form ('plain', 'distributed') {
    # The difference of two numbers of calls: start-up, which varies by some ten thousand, and the caches' filling
    # drop out.
    my $calls = $row =~ /300/ ? 50 : 2000;
    push @count, int((instructions($row, $form, $calls + 20) - instructions($row, $form, 20)) / $calls + 0.5);
  }
  printf "| %s | %d instructions | %d |\n", $row, @count;
  my @before = map { s/,//gr } @{ $said{$row} // die "dispatch_cost: docs/performance.md has no row $row\n" };
  for my $i (0, 1) {
    next if $count[$i] <= $allowed * $before[$i];
    print "dispatch_cost: $row: $count[$i] instructions; docs/performance.md says $before[$i]\n";
    ++$slower;
  }
}
exit($slower ? 1 : 0);
