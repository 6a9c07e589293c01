EQ.begin();
