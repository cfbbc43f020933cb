#!/usr/bin/env perl
# Writes token ids for the configs in this folder, which measure and learn nothing: pseudo-random, the same on any machine.
#   perl configs/gpu/tokens.pl [FILE [COUNT [IDS]]]     (runs/gpu/tokens.npy; 2,097,152 tokens, 8 MiB; 128,256 ids)
use strict;
use warnings;
use File::Basename qw(dirname);
use File::Path qw(make_path);

my $file = $ARGV[0] // dirname(__FILE__) . '/../../runs/gpu/tokens.npy';
my $count = $ARGV[1] // 2_097_152;
die "tokens.pl: a number of tokens is expected, not '$count'\n" unless $count =~ /^[1-9]\d*$/;
my $vocabulary = $ARGV[2] // 128_256;
my $state = 1;
my $ids = '';
for (1 .. $count) {
  $state = ($state * 1_103_515_245 + 12_345) & 0x7fffffff;
  $ids .= pack 'V', ($state >> 8) % $vocabulary;
}
my $header = "{'descr': '<u4', 'fortran_order': False, 'shape': ($count,), }";
$header .= ' ' x (63 - (10 + length $header) % 64) . "\n";
make_path(dirname($file));
open my $out, '>:raw', $file or die "$file: $!\n";
print {$out} "\x93NUMPY\x01\x00", pack('v', length $header), $header, $ids or die "$file: $!\n";
close $out or die "$file: $!\n";
print "$file: $count tokens\n";
