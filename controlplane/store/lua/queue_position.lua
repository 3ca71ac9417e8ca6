-- A: session. -1 when not waiting.
return place_of(need('sessions', A.session, 'session'))
