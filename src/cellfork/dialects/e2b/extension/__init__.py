"""What cellfork's own client asks for and E2B's wire has no words for: paths under ``/cellfork``, beside E2B's own."""
